"""A script that asks for what the launcher does not give, and then trains alone."""

import sys

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

import lightning_recipes
from lightning_recipes import ResumeCheckpoint

if __name__ == "__main__":
    try:
        lightning_recipes.trainer(devices=4, accelerator="cpu")
    except MisconfigurationException as error:
        sys.stdout.write(f"CONFLICT {error}\n")
    trainer = Trainer(
        accelerator="cpu",
        max_steps=1,
        callbacks=[ResumeCheckpoint()],
        logger=False,
        barebones=False,
    )
    try:
        trainer.fit(BoringModel())
    except MisconfigurationException as error:
        sys.stdout.write(f"ALONE {error}\n")
        sys.exit(3)
