"""Sequences of different lengths in one tensor, with what is real in it."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LeftPadded", "Padded"]


class Padded(NamedTuple):
    """A batch of sequences padded to one length, with what is real in it.

    A named tuple, so that pinning, moving to a device, pickling and ``torch.compile`` just work.

    Attributes:
        values: The sequences, shape (B, T, ...).
        lengths: Their lengths before padding, int64, shape (B,).
    """

    values: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """True where a value is real, False where it is padding; bool, shape (B, T)."""
        return self._steps() < self.lengths[:, None]

    def _steps(self) -> Tensor:
        return torch.arange(self.values.shape[1], device=self.lengths.device)


class LeftPadded(Padded):
    """The same with the padding before the sequence, as generation with a decoder wants it."""

    __slots__ = ()

    @property
    def mask(self) -> Tensor:
        """True where a value is real, False where it is padding; bool, shape (B, T)."""
        return self._steps() >= self.values.shape[1] - self.lengths[:, None]
