"""A training that is asked to stop, by a real signal, at a chosen moment.

``python -m tests.callbacks.preemptible <root> <moment>:<step>:<rank>[:launcher] <options as JSON>``
goes on from the newest file under the root, as a scheduler's job would.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_recipes import Preempted, ResumeCheckpoint
from tests.project import PointsDataModule, make_module, make_trainer


class NoisyDataModule(PointsDataModule):
    """Draws while a batch is moved to the device, so that the moment of saving shows."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        points, classes = batch
        return points + 0.1 * torch.randn_like(points), classes


class Kick(Callback):
    """Sends a signal to this process, or to its parent, once, at a moment of a step."""

    def __init__(
        self, moment: str, step: int = 0, *, rank: int = 0, number: int = signal.SIGTERM
    ) -> None:
        self.moment, self.step, self.rank, self.number = moment, step, rank, number
        self.to_launcher = False
        self.kicked_at: int | None = None

    def _kick(self, moment: str, trainer: Trainer) -> None:
        is_now = (moment, trainer.global_step) == (self.moment, self.step)
        if not is_now or self.kicked_at is not None or trainer.global_rank != self.rank:
            return
        self.kicked_at = trainer.global_step
        os.kill(os.getppid() if self.to_launcher else os.getpid(), self.number)
        first = trainer.callbacks[0]  # type: ignore[attr-defined]
        while self.to_launcher and first._preemption._signals.received is None:
            time.sleep(0.01)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._kick("setup", trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kick("sanity check", trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kick("train start", trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._kick("batch", trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._kick("batch end", trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._kick("validation", trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kick("epoch end", trainer)


def fit(
    root: Path,
    *callbacks: Callback,
    ckpt_path: str | None = None,
    resume: dict[str, Any] | None = None,
    first: ResumeCheckpoint | None = None,
    **options: Any,
) -> Trainer:
    """Train for 18 steps of three epochs, or go on."""
    num_workers = options.pop("num_workers", 0)
    trainer = make_trainer(root, *callbacks, **options)
    first = first or ResumeCheckpoint(every_n_minutes=None, **(resume or {}))
    trainer.callbacks[0] = first  # type: ignore[attr-defined]
    data = NoisyDataModule(batch_size=4 // trainer.world_size, num_workers=num_workers, seed=5)
    trainer.fit(make_module(), data, ckpt_path=ckpt_path)
    return trainer


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of the module's tensors."""
    state = trainer.lightning_module.state_dict()
    return {name: value.clone() for name, value in state.items()}


def main(root: Path, kick: str, options: dict[str, Any]) -> None:
    """Go on from the newest file; leave the weights of that run and of an uninterrupted one."""
    moment, step, rank, *to = kick.split(":")
    kicker = Kick(moment, int(step), rank=int(rank))
    kicker.to_launcher = bool(to)
    files = sorted((root / "resume").glob("step=*.ckpt"))
    try:
        trainer = fit(root, kicker, ckpt_path=str(files[-1]) if files else None, **options)
    except Preempted as stop:
        (root / f"code-{os.environ.get('LOCAL_RANK', 0)}").write_text(str(stop.code))
        raise
    end = weights(trainer)
    whole = weights(fit(root / "whole", **options))
    if trainer.is_global_zero:
        torch.save((end, whole), root / "end.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
