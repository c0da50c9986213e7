"""Inherit the base module, attach callbacks, train: ``python examples/custom_module.py``."""

from functools import partial

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor, nn

from lightning_recipes import DigitsDataModule, RecipeModule, ResumeCheckpoint, Step, WarmupCosineLR


class Autoencoder(RecipeModule):
    """Squeeze a digit through a few numbers and draw it again."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(optimizer=partial(torch.optim.AdamW, lr=3e-3))
        self.layers = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64))

    def step(self, batch: tuple[Tensor, Tensor]) -> Step:
        """Return the mean squared error of the drawing."""
        pixels = batch[0].flatten(1)
        loss = nn.functional.mse_loss(self.layers(pixels).float(), pixels)
        return Step(loss, count=len(pixels))


if __name__ == "__main__":
    seed_everything(1)
    callbacks = [ResumeCheckpoint(every_n_steps=50), WarmupCosineLR(warmup=0.1)]
    trainer = Trainer(max_epochs=20, callbacks=callbacks, default_root_dir="runs/autoencoder")
    trainer.fit(Autoencoder(), datamodule=DigitsDataModule())
