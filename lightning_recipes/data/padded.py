"""Sequences of different lengths in one tensor, with what is real in it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["LeftPadded", "Padded"]


class Padded(NamedTuple):
    """A batch of sequences padded to one length, with what is real in it.

    A named tuple, so that pinning, moving to a device, pickling and ``torch.compile`` just work.
    Nothing is checked where one is made, which may be on a GPU or in a compiled graph; ``unpad``
    and ``to_nested``, which wait for the lengths anyway, check them.

    Attributes:
        values: The sequences, shape (B, T, ...); with n ragged axes (B, T_1, ..., T_n, ...).
        lengths: Their lengths before padding, int64, shape (B,); with n > 1 ragged axes (B, n).

    Example:
        >>> padded = Padded(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1]))
        >>> padded.mask
        tensor([[ True,  True,  True],
                [ True, False, False]])
        >>> padded.unpad()
        [tensor([5, 6, 7]), tensor([8])]
    """

    values: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """True where a value is real, False where it is padding; bool, (B, T) or (B, T_1, ...)."""
        lengths = self.lengths if self.lengths.ndim > 1 else self.lengths[:, None]
        num_ragged = lengths.shape[1]
        mask = torch.ones((), dtype=torch.bool, device=lengths.device)
        for axis in range(num_ragged):
            # counted from the side on which the sequence touches the edge
            steps = torch.arange(self.values.shape[1 + axis], device=lengths.device)
            if isinstance(self, LeftPadded):
                steps = steps.flip(0)
            shape = [1] * num_ragged
            shape[axis] = -1
            mask = mask & (steps.view(shape) < lengths[:, axis].view(-1, *[1] * num_ragged))
        return mask

    def unpad(self) -> list[Tensor]:
        """Return the B sequences without padding, each a view of shape (T_i, ...).

        Waits for the device, once.

        Raises:
            ValueError: The lengths are not between 0 and the size of the values.
        """
        sequences = []
        for row, lengths in zip(self.values, self._checked_lengths(), strict=True):
            for axis, length in enumerate(lengths):
                start = row.shape[axis] - length if isinstance(self, LeftPadded) else 0
                row = row.narrow(axis, start, length)
            sequences.append(row)
        return sequences

    def to_nested(self) -> Tensor:
        """Return a nested tensor of layout ``torch.jagged`` and shape (B, j, ...).

        A copy, differentiable. Waits for the device.

        Raises:
            ValueError: More than one axis is ragged, which that layout does not know; or as in
                :meth:`unpad`.
        """
        self._checked_lengths()
        if self.lengths.ndim > 1:
            raise ValueError(
                f"A jagged tensor has one ragged axis, got lengths of shape "
                f"{tuple(self.lengths.shape)}. Use unpad() instead."
            )
        offsets = F.pad(self.lengths.cumsum(0), (1, 0))
        nested: Tensor = torch.nested.nested_tensor_from_jagged(self.values[self.mask], offsets)
        return nested

    def _checked_lengths(self) -> list[list[int]]:
        """Return the lengths per sequence and ragged axis."""
        num_rows = len(self.values)
        num_axes = 1 if self.lengths.ndim == 1 else self.lengths.shape[-1]
        if self.lengths.shape not in ((num_rows,), (num_rows, num_axes)):
            raise ValueError(
                f"The lengths of {num_rows} sequences have shape (B,) or (B, n), got "
                f"{tuple(self.lengths.shape)}."
            )
        sizes = self.values.shape[1 : 1 + num_axes]
        if len(sizes) < num_axes:
            raise ValueError(
                f"Lengths of shape {tuple(self.lengths.shape)} need {num_axes} axes after the "
                f"first; the values have the axes {tuple(self.values.shape)}."
            )
        checked: list[list[int]] = self.lengths.view(num_rows, num_axes).tolist()
        for i, lengths in enumerate(checked):
            if any(not 0 <= n <= size for n, size in zip(lengths, sizes, strict=True)):
                raise ValueError(
                    f"Lengths are between 0 and the size of the values, {tuple(sizes)}, got "
                    f"{lengths} for sequence {i}."
                )
        return checked


class LeftPadded(Padded):
    """The same with the padding before the sequence, as generation with a decoder wants it."""

    __slots__ = ()
