"""What a run does, as one JSON line per event and rank."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.optim import Optimizer

from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.certify.digests import digest
from lightning_recipes.data.sampler import CoordinateSampler
from lightning_recipes.rng import capture_rng_state

__all__ = ["BatchMarker", "Recorder", "RowLogger"]

_KEY = "lightning_recipes.certify"


class Recorder(Callback):
    """Write what happens to ``rank<r>.jsonl``, and disturb nothing.

    It draws no random number and changes no state; a checkpoint written beside it holds one number
    more, how many events had happened. It belongs behind every callback that acts on the run, and
    before those that write checkpoints at the end of an event.

    Every line has ``kind``, ``moment`` (events so far, this one included; logged rows do not
    count), ``step`` (the optimizer step in hand, from 1) and ``epoch``; and by kind:

    ==========  ====================================================================================
    start       ``resumed_at_moment``, ``global_step``, ``total_steps``, ``world_size``,
                ``loaders``, ``has_positions``, ``has_resume_checkpoint``
    begin       nothing more: a batch begins, before other callbacks get to know
    batch       ``batch_idx``, ``ids`` (None for a loader that does not tell), ``batch`` (digest),
                ``rng`` (digests), ``learning_rates``; before anything happens to the batch
    step        ``weights`` (digests of parameters and buffers), ``optimizer``; after the batch
    validation  nothing more: a validation begins
    epoch_end   nothing more
    row         ``logged_step``, ``values``; what a logger is given, on rank 0
    end         ``global_step``, ``learning_rates``, ``weights``, ``optimizer``
    ==========  ====================================================================================

    Args:
        folder: Where to write.
        facts: Whatever else the ``start`` line should say.
    """

    def __init__(self, folder: Path, *, facts: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.facts = facts or {}
        self._trainer: Trainer | None = None
        self._moment = 0
        self._step = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Open this rank's file."""
        self._trainer = trainer
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"rank{trainer.global_rank}.jsonl"
        # Flushed line by line: the process may be killed at any moment.
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the file."""
        self._file.close()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note in the checkpoint at which moment it was written."""
        checkpoint[_KEY] = {"moment": self._moment}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count on from the moment at which the checkpoint was written."""
        self._moment = checkpoint.get(_KEY, {}).get("moment", 0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record what is about to run, and from where."""
        self._step = trainer.global_step + 1
        # The loaders are there by now, so that asking for the number of steps builds none.
        total_steps = trainer.estimated_stepping_batches
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        self._write(
            "start",
            resumed_at_moment=self._moment,
            global_step=trainer.global_step,
            total_steps=total_steps if 0 <= total_steps < float("inf") else None,
            world_size=trainer.world_size,
            loaders=[type(loader).__name__ for loader in loaders],
            has_positions=all(hasattr(loader, "load_state_dict") for loader in loaders),
            has_resume_checkpoint=any(isinstance(c, ResumeCheckpoint) for c in callbacks),
            **self.facts,
        )

    def begin_batch(self, trainer: Trainer) -> None:
        """Record that a batch begins."""
        self._step = trainer.global_step + 1
        self._event("begin")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the batch, the random state and the learning rates."""
        state = capture_rng_state()
        self._event(
            "batch",
            batch_idx=batch_idx,
            ids=_sample_ids(trainer),
            batch=digest(batch),
            rng={name: digest(state[name]) for name in ("python", "numpy", "torch", "device")},
            learning_rates=_learning_rates(trainer.optimizers),
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the weights and the optimizer's state."""
        self._event("step", **_learned(trainer, pl_module))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that a validation begins."""
        if not trainer.sanity_checking:
            self._event("validation")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that an epoch ends."""
        self._event("epoch_end")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record how it all ended."""
        self._event(
            "end",
            global_step=trainer.global_step,
            learning_rates=_learning_rates(trainer.optimizers),
            **_learned(trainer, pl_module),
        )

    def row(self, metrics: dict[str, Any], logged_step: int | None) -> None:
        """Record a row that a logger was given."""
        if self._trainer is not None and self._trainer.is_global_zero:
            values = {name: _plain(value) for name, value in metrics.items()}
            self._write("row", logged_step=logged_step, values=values)

    def _event(self, kind: str, **fields: Any) -> None:
        self._moment += 1
        self._write(kind, **fields)

    def _write(self, kind: str, **fields: Any) -> None:
        assert self._trainer is not None
        head = {"kind": kind, "moment": self._moment, "step": self._step}
        line = json.dumps({**head, "epoch": self._trainer.current_epoch, **fields})
        self._file.write(f"{line}\n")


class BatchMarker(Callback):
    """Tell a recorder that a batch begins.

    It belongs before every callback but ``ResumeCheckpoint``: a run is saved before this, and what
    callbacks log at the start of a batch comes after.

    Args:
        recorder: Is told.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Tell it."""
        self._recorder.begin_batch(trainer)


class RowLogger(DummyLogger):
    """A logger that hands every row to a recorder, and takes any other call without a word.

    It stands in for the configured loggers, so that a certificate leaves no trace in log folders
    and starts no run at a tracking service.

    Args:
        recorder: Gets the rows.
        save_dir: What the trainer and callbacks may take for the logger's folder.
    """

    def __init__(self, recorder: Recorder, save_dir: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._save_dir = save_dir

    @property
    def save_dir(self) -> str:
        """The folder of the run."""
        return self._save_dir

    @property
    def log_dir(self) -> str:
        """The folder of the run."""
        return self._save_dir

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Record a row."""
        self._recorder.row(metrics, step)


def _sample_ids(trainer: Trainer) -> list[list[int]] | None:
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    samplers = [getattr(loader, "sampler", None) for loader in loaders]
    ids = [s.last_indices() for s in samplers if isinstance(s, CoordinateSampler)]
    return ids if len(ids) == len(loaders) else None


def _learning_rates(optimizers: list[Optimizer]) -> dict[str, float]:
    return {
        f"optimizer {i}, group {j}": float(group["lr"])
        for i, optimizer in enumerate(optimizers)
        for j, group in enumerate(optimizer.param_groups)
    }


def _learned(trainer: Trainer, pl_module: LightningModule) -> dict[str, dict[str, Any]]:
    weights = {**dict(pl_module.named_parameters()), **dict(pl_module.named_buffers())}
    names = {id(weight): name for name, weight in weights.items()}
    state: dict[str, Any] = {}
    for i, optimizer in enumerate(trainer.optimizers):
        for j, group in enumerate(optimizer.param_groups):
            options = {k: v for k, v in group.items() if k not in ("params", "lr")}
            state[f"optimizer {i}, group {j}"] = digest(options)
            for k, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"group {j}, parameter {k}")
                for key, value in optimizer.state.get(parameter, {}).items():
                    state[f"optimizer {i}, {name}, {key}"] = digest(value)
    return {"weights": {name: digest(w) for name, w in weights.items()}, "optimizer": state}


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return digest(value)
