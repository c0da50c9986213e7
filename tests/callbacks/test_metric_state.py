from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC

from lightning_recipes.callbacks import metric_state
from tests.project import PointsDataModule, make_module, make_trainer

MOVED = (
    f"Lightning {lightning.__version__} or torchmetrics {torchmetrics.__version__} moved {{}}, on "
    "which exact resume rests: put callbacks/metric_state.py right."
)


class Look(Callback):
    """Looks at the running means before the last batch of an epoch."""

    def __init__(self) -> None:
        self.means: metric_state.RunningMeans = {}
        self.attributes: set[str] = set()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pl_module.log("mean", float(batch_idx), on_step=False, on_epoch=True, batch_size=2)
        pl_module.log("max", float(batch_idx), on_step=False, on_epoch=True, reduce_fx="max")
        pl_module.log("sum", float(batch_idx), on_step=False, on_epoch=True, reduce_fx="sum")
        if batch_idx == 3:
            self.means = metric_state.capture_running_means(trainer)
            results = trainer.fit_loop.epoch_loop._results
            self.attributes = set(vars(next(iter(results.values()))))


def test_running_means_are_those_logged_so_far(tmp_path: Path) -> None:
    look = Look()
    trainer = make_trainer(tmp_path, look, max_epochs=1)
    trainer.callbacks[1].warmup = 0  # type: ignore[attr-defined]
    trainer.fit(make_module(), PointsDataModule(batch_size=4))
    assert {"meta", "is_tensor", "has_reset", "value"} <= look.attributes, MOVED.format("_results")
    means = {key.rpartition(".")[2]: state for key, state in look.means.items()}
    # of the batches 0 to 3
    logged = means["mean"].pop("logged")
    assert means["mean"] == {
        "reduce": "mean",
        "value": torch.tensor(12.0),
        "count": torch.tensor(8),
        "step": None,
        "can_log": True,
    }
    assert logged["name"] == "mean", MOVED.format("_Metadata")
    assert means["max"]["value"] == 3
    assert means["sum"]["value"] == 6
    for name in ("_callback_metrics", "_logged_metrics"):
        assert name in vars(trainer._logger_connector), MOVED.format(name)


def state(reduce: str, value: float, count: int | None = None) -> dict[str, Any]:
    tensor = None if count is None else torch.tensor(count)
    return {"reduce": reduce, "value": torch.tensor(value), "count": tensor}


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (state("mean", 6.0, 3), state("mean", 4.0, 2), state("mean", 10.0, 5)),
        (state("sum", 6.0), state("sum", 4.0), state("sum", 10.0)),
        (state("max", 6.0), state("max", 4.0), state("max", 6.0)),
        (state("min", 6.0), state("min", 4.0), state("min", 4.0)),
    ],
)
def test_means_of_two_parts_are_combined(
    one: dict[str, Any], two: dict[str, Any], both: dict[str, Any]
) -> None:
    combined = metric_state.combine_running_means({"a": one, "b": one}, {"a": two, "c": two})
    assert combined == {"a": both, "b": one, "c": two}


class WithMetrics(LightningModule):
    """Metrics with a number, a list, and a shared state."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()
        self.auroc = BinaryAUROC()
        self.group = MetricCollection({"a": SumMetric(), "b": SumMetric()})
        self.unused = SumMetric()

    def update(self, seed: int) -> None:
        values = torch.rand(8, generator=torch.Generator().manual_seed(seed))
        self.mean.update(values)
        self.auroc.update(values, (values > 0.4).long())
        self.group.update(values)

    def compute(self) -> list[torch.Tensor]:
        return [self.mean.compute(), self.auroc.compute(), *self.group.compute().values()]


def saved(module: WithMetrics) -> dict[str, Any]:
    trainer = Trainer(accelerator="cpu", logger=False, barebones=True)
    return metric_state.capture_metrics(trainer, module)


@pytest.mark.filterwarnings("ignore:Running in `barebones")
def test_metrics_go_on_where_they_were() -> None:
    whole, stopped, resumed = WithMetrics(), WithMetrics(), WithMetrics()
    for seed in (1, 2, 3):
        whole.update(seed)
    for seed in (1, 2):
        stopped.update(seed)
    state = saved(stopped)
    assert set(state["objects"]) == {"mean", "auroc", "group.a", "group.b"}
    metric_state.restore_metrics(resumed, [state])
    resumed.update(3)
    assert resumed.compute() == whole.compute()
    assert resumed.mean.update_count == 3, MOVED.format("Metric._update_count")


@pytest.mark.filterwarnings("ignore:Running in `barebones")
def test_metrics_of_two_ranks_become_one() -> None:
    one, two, both, resumed = WithMetrics(), WithMetrics(), WithMetrics(), WithMetrics()
    one.update(1)
    two.update(2)
    both.update(1)
    both.update(2)
    metric_state.restore_metrics(resumed, [saved(one), saved(two)])
    torch.testing.assert_close(resumed.compute(), both.compute())
