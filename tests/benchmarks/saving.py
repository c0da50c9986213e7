"""Runs that save every step: with ResumeCheckpoint, and with Lightning alone."""

import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_recipes import ResumeCheckpoint, newest_intact, resumable

__all__ = [
    "STEP",
    "PlainCheckpoint",
    "TimedResumeCheckpoint",
    "fit",
    "ms_per_save",
    "ms_to_first_batch",
]

WIDTH = 32
STEP = 1  # of the file that a run goes on from


class Network(LightningModule):
    """A model of so many bytes, whose optimizer keeps no state."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        hidden = num_bytes // (2 * WIDTH * 4)
        self.layers = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.layers(batch[0]), batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class TimedResumeCheckpoint(ResumeCheckpoint):
    """Notes how long its saves take, all that it does at the start of a batch, in ms."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), every_n_steps=1)
        self.times: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        start = time.perf_counter()
        super().on_train_batch_start(trainer, *args)
        self.times.append((time.perf_counter() - start) * 1e3)


class PlainCheckpoint(Callback):
    """Does with Lightning alone what looks the same: saves, and keeps the last two.

    Args:
        folder: Where to.
        is_flushed: Whether file and folder are on the disk, and not in memory only, in the end.
    """

    def __init__(self, folder: Path, *, is_flushed: bool = False) -> None:
        self.folder = folder
        self.is_flushed = is_flushed
        self.times: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        start = time.perf_counter()
        path = self.path(trainer.global_step)
        trainer.save_checkpoint(path)
        if self.is_flushed:
            flush(path)
            flush(path.parent)
        self.path(trainer.global_step - 2).unlink(missing_ok=True)
        self.times.append((time.perf_counter() - start) * 1e3)

    def path(self, step: int) -> Path:
        """Return where the file of a step is."""
        return self.folder / f"step={step:09d}.ckpt"


Checkpoint = TimedResumeCheckpoint | PlainCheckpoint


class FirstBatch(Callback):
    """Notes when the first batch begins."""

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if not hasattr(self, "time"):
            self.time = time.perf_counter()


def flush(path: Path) -> None:
    """Have the disk hold what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def fit(num_bytes: int, num_steps: int, *callbacks: Callback, path: Path | None = None) -> None:
    """Train a model, with our loader if ResumeCheckpoint is there."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(1, verbose=False)
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.randn(400, WIDTH)), 4, shuffle=True)
    is_ours = any(isinstance(callback, ResumeCheckpoint) for callback in callbacks)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=num_steps,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(num_bytes), resumable(loader) if is_ours else loader, ckpt_path=path)


def ms_per_save(checkpoint: Checkpoint, num_bytes: int, num_saves: int) -> float:
    """Return the median of the saves of a run, without the first three, which remove nothing."""
    fit(num_bytes, num_saves + 3, checkpoint)
    return statistics.median(checkpoint.times[3:])


def ms_to_first_batch(num_bytes: int, path: Path, *, is_ours: bool) -> float:
    """Return how long it takes to go on from a file until the first batch begins.

    Args:
        num_bytes: Of the model.
        path: Of the newest file of its folder, which ours looks for and verifies.
        is_ours: Whether with ResumeCheckpoint, or Lightning alone, which is given the path.
    """
    first = FirstBatch()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ours = [ResumeCheckpoint(folder)] if is_ours else []
        path = newest_intact(path.parent) or path if is_ours else path
        fit(num_bytes, STEP + 1, *ours, first, path=path)
    return (first.time - start) * 1e3
