"""What a run does, as one JSON line per event and rank."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader

from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.certify.digests import digest
from lightning_recipes.certify.quantities import (
    learned,
    learning_rates,
    plain,
    sample_ids,
    total_steps,
)
from lightning_recipes.rng import capture_rng_state

__all__ = ["BatchMarker", "Recorder"]

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
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        self._write(
            "start",
            resumed_at_moment=self._moment,
            global_step=trainer.global_step,
            total_steps=total_steps(trainer),
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
            ids=sample_ids(trainer),
            batch=digest(batch),
            rng={name: digest(state[name]) for name in ("python", "numpy", "torch", "device")},
            learning_rates=learning_rates(trainer.optimizers),
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the weights and the optimizer's state."""
        self._event("step", **learned(trainer, pl_module))

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
            learning_rates=learning_rates(trainer.optimizers),
            **learned(trainer, pl_module),
        )

    def row(self, metrics: dict[str, Any], logged_step: int | None) -> None:
        """Record a row that a logger was given."""
        if self._trainer is not None and self._trainer.is_global_zero:
            values = {name: plain(value) for name, value in metrics.items()}
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
