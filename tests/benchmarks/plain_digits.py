"""The digits of ``configs/digits.yaml`` without this package, for ``startup.py`` to start.

As a script, ``python -m tests.benchmarks.plain_digits ROOT``, and as a LightningCLI, ``python -m
tests.benchmarks.plain_digits fit``.
"""

import argparse
import os
import sys
import time
from typing import Any

import torch
from lightning.pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset, random_split


class Stop(Callback):
    """Prints when a training step begins, in seconds since 1970, and ends the process there.

    Args:
        after: How many steps to make before.
    """

    def __init__(self, after: int = 0) -> None:
        self.after = after

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Do it."""
        if self.after == 0:
            print(f"\nstep at {time.time()}", flush=True)
            os._exit(0)
        self.after -= 1


class Digits(LightningModule):
    """The network of ``ConvNet(num_classes=10, width=32)``."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(*_stage(1, 32), nn.MaxPool2d(2), *_stage(32, 64), nn.AdaptiveAvgPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 10)),
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss, and log it."""
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val/loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Optimizer:
        """Build the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.05)


class DigitsData(LightningDataModule):
    """The same images, not shifted."""

    def setup(self, stage: str) -> None:
        """Load and split them."""
        data: Any = load_digits()
        images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
        digits = TensorDataset(images, torch.from_numpy(data.target).long())
        self.train_set, self.val_set, _ = random_split(digits, [0.7, 0.15, 0.15])

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training batches."""
        return DataLoader(self.train_set, batch_size=64, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return those of the validation."""
        return DataLoader(self.val_set, batch_size=256)


def _stage(in_channels: int, out_channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for channels in (in_channels, out_channels):
        convolution = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(out_channels), nn.ReLU()]
    return layers


def fit(root: str, *, checkpoint: str | None, after: int) -> None:
    """Train as a script does."""
    seed_everything(1)
    trainer = Trainer(
        default_root_dir=root,
        max_epochs=30,
        log_every_n_steps=10,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(f"{root}/checkpoints"), Stop(after)],
    )
    trainer.fit(Digits(), DigitsData(), ckpt_path=checkpoint)


def main() -> None:
    """Do as a script, or as a LightningCLI."""
    if sys.argv[1] == "fit":
        from lightning.pytorch.cli import LightningCLI  # no burden for the script

        LightningCLI(Digits, DigitsData, seed_everything_default=1)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--checkpoint")
    parser.add_argument("--after", type=int, default=0)
    options = parser.parse_args()
    fit(options.root, checkpoint=options.checkpoint, after=options.after)


if __name__ == "__main__":
    main()
