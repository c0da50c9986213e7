"""What happened at the optimizer steps between two looks."""

import math

import torch
from torch import Tensor

from lightning_recipes.callbacks.ranks import gather

__all__ = ["UnseenSteps"]


class UnseenSteps:
    """Remembers, on the device, the first step whose norm was not finite."""

    def __init__(self) -> None:
        self._first_bad: Tensor | None = None

    def note(self, norm: Tensor, step: int) -> Tensor:
        """Take note of a step; return its norm, or NaN if it or one before was bad."""
        if self._first_bad is None:
            # exact beyond 2**24 steps, which float32 is not
            self._first_bad = torch.full((), -1, dtype=torch.int64, device=norm.device)
        is_first = (self._first_bad < 0) & ~torch.isfinite(norm)
        self._first_bad = torch.where(is_first, step, self._first_bad)
        return torch.where(self._first_bad < 0, norm, math.nan)

    def first_bad(self) -> int | None:
        """Return the first bad step of any rank since the last :meth:`forget`: a collective."""
        mine = -1 if self._first_bad is None else int(self._first_bad)
        return min((step for step in gather(mine) if step >= 0), default=None)

    def forget(self) -> None:
        """Begin anew."""
        self._first_bad = None
