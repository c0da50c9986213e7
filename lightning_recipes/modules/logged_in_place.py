"""Logged values that stay where they are: a private touch of Lightning's results."""

from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer

__all__ = ["leave_logged_in_place"]


def leave_logged_in_place(trainer: Trainer) -> None:
    """Spare what was logged once a search for what to move at every further ``self.log``.

    Lightning (2.6.6) sends the accumulator of a key to the device of the value at each call, and
    looks through all its attributes, and theirs, for tensors that are already there: two thirds of
    the call, 200 microseconds or more between the kernels of a step. Another device is still gone
    to.
    """
    for result in trainer._results.values():  # type: ignore[union-attr]
        if "to" not in vars(result):
            result.to = partial(_to, result)


def _to(result: Any, device: torch.device) -> Any:
    return result if result.value.device == device else type(result).to(result, device)
