"""Train on any number of processes, unchanged, however they are started::

    python examples/multi_gpu.py
    lightning-recipes run --devices 2 examples/multi_gpu.py
    torchrun --nproc-per-node 2 examples/multi_gpu.py
    fabric run --devices 2 examples/multi_gpu.py

The global batch stays the same, so that each step sees the same samples and takes the same mean:
the weights at the end are those of one process, but for rounding. Run again, it goes on from its
newest checkpoint.
"""

import hashlib
from functools import partial

import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn

import lightning_recipes
from lightning_recipes import (
    DigitsDataModule,
    RecipeModule,
    ResumeCheckpoint,
    Step,
    cross_entropy_step,
)

GLOBAL_BATCH_SIZE = 64


class SmallNet(RecipeModule):
    """Which digit is this?"""

    def __init__(self) -> None:
        super().__init__(optimizer=partial(torch.optim.SGD, lr=0.1), weight_by="count")
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))

    def step(self, batch: tuple[Tensor, Tensor]) -> Step:
        """Return the cross entropy."""
        pixels, digits = batch
        return cross_entropy_step(self.layers(pixels.flatten(1)), digits)


if __name__ == "__main__":
    seed_everything(1)
    trainer = lightning_recipes.trainer(
        max_epochs=3,
        callbacks=[ResumeCheckpoint(every_n_steps=20)],
        default_root_dir="runs/multi_gpu",
        enable_progress_bar=False,
    )
    module = SmallNet()
    data = DigitsDataModule(batch_size=GLOBAL_BATCH_SIZE // trainer.world_size)
    trainer.fit(module, data, ckpt_path=lightning_recipes.resume_path(trainer, module=module))
    weights = torch.cat([value.detach().cpu().flatten() for value in module.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    trainer.print(f"world size: {trainer.world_size}, weights: {digest[:16]}")
