"""Processes that were started together and would each train alone."""

import os

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

__all__ = ["refuse_strangers"]


def refuse_strangers(trainer: Trainer) -> None:
    """See that a trainer has all the processes that torchrun started.

    A plain ``Trainer()`` on CPUs, or one with ``devices=1``, takes no notice of the others: k
    processes then train k models, each on all of the data, and write the same files. Processes
    that are no ranks of one job have to be started without torchrun.

    Args:
        trainer: The trainer, of any strategy.

    Raises:
        MisconfigurationException: It has fewer.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    if trainer.world_size < num_processes:
        raise MisconfigurationException(
            f"The launcher started {num_processes} processes, and this trainer has "
            f"{trainer.world_size}: they would train {num_processes} models side by side, and "
            "write the same files. Build it with lightning_recipes.trainer(...), which takes "
            "devices, num_nodes and strategy from the launcher, or give these to the Trainer."
        )
