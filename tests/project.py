"""A small training with everything that has to come back after a resume."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_recipes import Classifier, RecipeDataModule, ResumeCheckpoint, WarmupCosineLR

NUM_BATCHES = 6  # of an epoch, all ranks together 4 samples each


class NoisyPoints(Dataset[tuple[Tensor, Tensor]]):
    """Points with a class, moved a little each time they are looked at."""

    def __init__(self, num_samples: int, *, noise: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.points = torch.randn(num_samples, 8, generator=generator)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = self.points[index]
        return point + self.noise * torch.randn(8), (point.sum() > 0).long()


class PointsDataModule(RecipeDataModule):
    """NoisyPoints for training and validation."""

    def setup(self, stage: str) -> None:
        self.train_set = NoisyPoints(4 * NUM_BATCHES, noise=0.1)
        self.val_set = self.test_set = self.predict_set = NoisyPoints(5, noise=0.0)


def make_module() -> Classifier:
    """Return a classifier with dropout, the same each time."""
    seed_everything(3, verbose=False)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    return Classifier(network, num_classes=2)


def make_trainer(root: Path, *callbacks: Callback, **kwargs: Any) -> Trainer:
    """Return a quiet trainer of three epochs that saves between all batches."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "default_root_dir": str(root),
        "logger": CSVLogger(root),
        "max_epochs": 3,
        "log_every_n_steps": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    every_step = ResumeCheckpoint(every_n_steps=1, keep_last=None)
    return Trainer(
        callbacks=[every_step, WarmupCosineLR(warmup=4), LearningRateMonitor(), *callbacks],
        **{**defaults, **kwargs},
    )
