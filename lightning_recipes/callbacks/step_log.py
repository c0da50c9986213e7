"""Logging at the number of an optimizer step, whenever that is."""

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer
from torch import Tensor

__all__ = ["is_logging_step", "log_at_step"]


def log_at_step(trainer: Trainer, metrics: Mapping[str, Tensor | float], step: int) -> None:
    """Give metrics to all loggers at the number of an optimizer step, and to other callbacks.

    Not ``self.log``, which keeps a value until the next step that Lightning logs, and logs it there
    again and again. Tensors are fetched from the device by the loggers of rank 0, if there are any.
    """
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=step)  # type: ignore[arg-type]
    seen = {name: torch.as_tensor(value).detach() for name, value in metrics.items()}
    trainer.callback_metrics.update(seen)


def is_logging_step(trainer: Trainer, every_n_steps: int | None) -> bool:
    """Return whether the coming optimizer step is one to log.

    Args:
        trainer: Before an optimizer step. With several optimizers a step of each counts as one.
        every_n_steps: Optimizer steps between two; by default the trainer's ``log_every_n_steps``,
            of which 0 is never.
    """
    interval: int = every_n_steps or trainer.log_every_n_steps  # type: ignore[attr-defined]
    step = trainer.global_step // max(len(trainer.optimizers), 1)
    return interval > 0 and (step + 1) % interval == 0
