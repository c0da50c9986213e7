"""The room that touches private state of logged metrics: Lightning's results and torchmetrics.

Checked on lightning 2.6.6 and torchmetrics 1.9; ``tests/callbacks/test_metric_state.py`` fails with
a readable message when any of it moves. Everything captured here is of this rank, and plain.
"""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric, MetricCollection

__all__ = [
    "RunningMeans",
    "add_running_means",
    "capture_metrics",
    "capture_running_means",
    "combine_running_means",
    "log_running_means",
    "mark_metrics",
    "metric_objects",
    "restore_metrics",
    "restore_seen_metrics",
    "roll_back_metrics",
]

RunningMeans = dict[str, dict[str, Any]]

_LOGGED = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "metric_attribute"),
)

_ACCUMULATED = ("value", "cumulated_batch_size", "has_reset")


def capture_running_means(trainer: Trainer) -> RunningMeans:
    """Return what ``self.log`` has gathered in this training epoch.

    For each logged key the name of its reduction, the accumulated value, the count of a mean, the
    last value of a step, which goes on being logged, and what else it was logged with. The value of
    a torchmetrics object is in its own state.
    """
    return {
        key: {
            "reduce": result.meta.reduce_fx.__name__,
            "value": result.value.clone() if result.is_tensor else None,
            "count": result.cumulated_batch_size.clone() if _is_mean(result) else None,
            "step": result._forward_cache if result.meta.on_step else None,
            # Not every argument is plain.
            "can_log": result.meta.sync.group is None and _is_of_torch(result.meta.reduce_fx),
            "logged": {
                "sync_dist": result.meta.sync.should,
                "rank_zero_only": result.meta.sync.rank_zero_only,
                **{name: getattr(result.meta, name) for name in _LOGGED},
            },
        }
        for key, result in trainer.fit_loop.epoch_loop._results.items()
        if not result.has_reset
    }


def combine_running_means(one: RunningMeans, two: RunningMeans) -> RunningMeans:
    """Return the running means over the batches of both."""
    both = {**two, **one}
    for key in one.keys() & two.keys():
        value, count = one[key]["value"], one[key]["count"]
        if value is None:
            continue
        reduce = {"max": torch.maximum, "min": torch.minimum}.get(one[key]["reduce"], torch.add)
        both[key] = {
            **one[key],
            "value": reduce(value, two[key]["value"].to(value.device)),
            "count": None if count is None else count + two[key]["count"].to(count.device),
        }
    return both


def add_running_means(trainer: Trainer, saved: RunningMeans) -> RunningMeans:
    """Add saved means to the running ones, and return those whose key is not logged yet.

    Lightning creates a key when it is first logged and empties it at the first batch of an epoch,
    also of a resumed one; so this is for after that batch.
    """
    running = capture_running_means(trainer)
    for key in saved.keys() & running.keys():
        result = trainer.fit_loop.epoch_loop._results[key]
        both = combine_running_means({key: running[key]}, {key: saved[key]})[key]
        if both["value"] is None or not result.meta.on_epoch:
            continue
        result.value = both["value"]
        if both["count"] is not None:
            result.cumulated_batch_size = both["count"]
        result._computed = None
    return {key: state for key, state in saved.items() if key not in running}


def log_running_means(trainer: Trainer, pl_module: LightningModule, saved: RunningMeans) -> None:
    """Log what the first resumed batch did not log again, with the saved value alone.

    Else what is logged in the first part of an epoch only would be lost, and a torchmetrics object
    would not be reset. For after that batch, too.
    """
    objects, device = dict(metric_objects(pl_module)), pl_module.device
    results = trainer.fit_loop.epoch_loop._results
    for key, state in saved.items():
        value: Any = objects.get(state["logged"]["metric_attribute"])
        if state["value"] is not None:
            value = state["value"].to(device)
            if state["logged"]["on_epoch"]:
                neutral = {"max": float("-inf"), "min": float("inf")}.get(state["reduce"], 0.0)
                value = torch.full_like(value, neutral)
        if value is None or not state["can_log"]:
            continue
        results.log(
            value=value,
            reduce_fx=getattr(torch, state["reduce"]),
            batch_size=0,
            sync_dist_fn=trainer.strategy.reduce,
            **state["logged"],
        )
        results[key]._forward_cache = _to(state["step"], device)
    add_running_means(trainer, saved)


def capture_metrics(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """Return the states of the module's torchmetrics, and the metrics that callbacks have seen."""
    return {
        "objects": {
            name: {"update_count": metric.update_count, "states": dict(metric.metric_state)}
            for name, metric in metric_objects(pl_module)
            if metric.update_count
        },
        "callback_metrics": dict(trainer.callback_metrics),
        "logged_metrics": dict(trainer.logged_metrics),
    }


def restore_metrics(pl_module: LightningModule, saved: list[dict[str, Any]]) -> None:
    """Put the states of the module's torchmetrics back, those of several ranks as one."""
    for name, metric in metric_objects(pl_module):
        for i, state in enumerate(metrics["objects"].get(name) for metrics in saved):
            if state is None:
                continue
            states = {key: _to(value, metric.device) for key, value in state["states"].items()}
            if i:
                metric.merge_state(states)
            else:
                for key, value in states.items():
                    setattr(metric, key, value)
            metric._update_count += state["update_count"]
            metric._computed = None


def restore_seen_metrics(trainer: Trainer, saved: dict[str, Any]) -> None:
    """Let callbacks and schedulers see the metrics of before, e.g. the last validation's."""
    connector = trainer._logger_connector
    for name in ("callback_metrics", "logged_metrics"):
        metrics = {k: _to(v, trainer.strategy.root_device) for k, v in saved[name].items()}
        getattr(connector, f"_{name}").update(metrics)


def mark_metrics(trainer: Trainer, objects: list[Metric]) -> dict[str, Any]:
    """Return what :func:`roll_back_metrics` needs, at the price of one copy of small tensors.

    Lightning replaces its accumulated tensors and never changes them, so that references do. Of a
    list of tensors, which grows with the epoch, its length is enough: that of this very list, since
    the metrics of a collection come to share one when they are asked for.
    """
    return {
        "results": {
            key: {name: getattr(result, name, None) for name in _ACCUMULATED}
            for key, result in trainer.fit_loop.epoch_loop._results.items()
            if result.is_tensor
        },
        "objects": [
            (
                metric._update_count,
                {
                    name: (state, len(state)) if isinstance(state, list) else state.clone()
                    for name, state in metric.metric_state.items()
                },
            )
            for metric in objects
        ],
    }


def roll_back_metrics(
    trainer: Trainer, objects: list[Metric], mark: dict[str, Any], *, is_new_epoch: bool
) -> None:
    """Take the batches since a mark out of all running means and torchmetrics.

    Args:
        trainer: The trainer.
        objects: As they were given to :func:`mark_metrics`.
        mark: What that returned.
        is_new_epoch: Whether the mark was set before the first batch of an epoch, at which
            Lightning empties what it still has of the last one.
    """
    for key, result in trainer.fit_loop.epoch_loop._results.items():
        if not (result.is_tensor and result.meta.on_epoch):
            continue
        if is_new_epoch or key not in mark["results"]:
            result.reset()
            continue
        for name, value in mark["results"][key].items():
            setattr(result, name, value)
        result._computed = None
    for metric, (count, states) in zip(objects, mark["objects"], strict=True):
        for name, state in states.items():
            if isinstance(state, tuple):
                items, length = state
                del items[length:]
                setattr(metric, name, items)
            else:
                setattr(metric, name, state.clone())
        metric._update_count = count
        metric._computed = None


def _is_of_torch(reduce_fx: Any) -> bool:
    return reduce_fx is getattr(torch, reduce_fx.__name__, None)


def _is_mean(result: Any) -> bool:
    return bool(result.is_tensor and result.meta.is_mean_reduction)


def metric_objects(pl_module: LightningModule) -> Iterator[tuple[str, Metric]]:
    """Yield the torchmetrics of a module, those of a collection one by one."""
    for name, module in pl_module.named_modules():
        if isinstance(module, MetricCollection):
            # Members that share a state are brought up to date when they are asked for.
            list(module.values(copy_state=False))
        elif isinstance(module, Metric):
            yield name, module


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_to(item, device) for item in value]
    return value.to(device, copy=True) if isinstance(value, Tensor) else value
