"""How one ragged field is padded: by what, where, and to which size."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_recipes.data.columns import check_alike
from lightning_recipes.data.containers import at
from lightning_recipes.data.padded import LeftPadded, Padded

__all__ = ["Padding"]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How one ragged field is padded.

    Attributes:
        path: Of the field, for messages.
        value: What to pad with.
        multiple: What the padded sizes are multiples of.
        max_length: The largest size along a ragged axis before rounding up, or None.
        is_cut: Whether what is longer is cut, on the padded side, or refused.
        side: ``"right"`` of the sequence, or ``"left"``.
        num_ragged: How many leading axes are ragged.
    """

    path: str
    value: float
    multiple: int
    max_length: int | None
    is_cut: bool
    side: Literal["right", "left"]
    num_ragged: int

    def pad(self, tensors: list[Tensor]) -> Padded:
        """Return tensors of shape (T_1, ..., T_n, ...), one dtype and rank, as one batch.

        Raises:
            ValueError: They have fewer axes than are ragged, or other axes differ in size; one is
                too long; the pad value does not fit the dtype.
        """
        self._check(tensors)
        sizes = self._sizes(tensors)
        if self.max_length is not None and max(map(max, sizes)) > self.max_length:
            tensors = [self._cut(i, tensor) for i, tensor in enumerate(tensors)]
            sizes = self._sizes(tensors)
        longest = [max(-(-max(axis) // self.multiple), 1) * self.multiple for axis in sizes]
        if self.num_ragged == 1:
            values = self._one_axis(tensors, sizes[0], longest[0])
            lengths = torch.tensor(sizes[0])
        else:
            values = self._many_axes(tensors, longest)
            lengths = torch.tensor(sizes).T.contiguous()
        return (Padded if self.side == "right" else LeftPadded)(values, lengths)

    def _sizes(self, tensors: list[Tensor]) -> list[list[int]]:
        """Return the sizes of all tensors, per ragged axis."""
        return [[tensor.shape[axis] for tensor in tensors] for axis in range(self.num_ragged)]

    def _check(self, tensors: list[Tensor]) -> None:
        first = tensors[0]
        if first.ndim < self.num_ragged:
            raise ValueError(
                f"ragged_dims says that {self.num_ragged} axes are ragged in {at(self.path)}, got "
                f"a first sample of shape {tuple(first.shape)}. Give it axes or another number."
            )
        if first.ndim > self.num_ragged:
            check_alike(
                tensors,
                self.path,
                "shape after the ragged axes",
                lambda tensor: tuple(tensor.shape[self.num_ragged :]),
                "More axes are padded with ragged_dims.",
            )
        if not _fits(self.value, first.dtype):
            raise ValueError(
                f"The pad value {self.value} does not fit the dtype {first.dtype} of "
                f"{at(self.path)}. Choose another with pad_value={{{self.path!r}: ...}}, or "
                "another dtype in the data set."
            )

    def _cut(self, index: int, tensor: Tensor) -> Tensor:
        assert self.max_length is not None
        for axis, size in enumerate(tensor.shape[: self.num_ragged]):
            if size > self.max_length:
                if not self.is_cut:
                    raise ValueError(
                        f"A sequence has at most max_length={self.max_length} steps; sample "
                        f"{index} of the batch has {size} in {at(self.path)}. Shorten it in the "
                        "data set, or let on_too_long='truncate' cut it."
                    )
                start = 0 if self.side == "right" else size - self.max_length
                tensor = tensor.narrow(axis, start, self.max_length)
        return tensor

    def _one_axis(self, tensors: list[Tensor], lengths: list[int], num_steps: int) -> Tensor:
        # One concatenation of sequences and pieces of padding in turn is faster than a copy per
        # row, but only without empty pieces, which put torch on a slow path.
        missing = [num_steps - length for length in lengths]
        other = tensors[0].shape[1:]
        padding = torch.split(tensors[0].new_full((sum(missing), *other), self.value), missing)
        pairs = zip(tensors, padding, strict=True)
        if self.side == "left":
            pairs = zip(padding, tensors, strict=True)
        pieces = [piece for pair in pairs for piece in pair if piece.shape[0]]
        return torch.cat(pieces).view(len(tensors), num_steps, *other)

    def _many_axes(self, tensors: list[Tensor], longest: list[int]) -> Tensor:
        other = tensors[0].shape[self.num_ragged :]
        values = tensors[0].new_full((len(tensors), *longest, *other), self.value)
        for row, tensor in zip(values, tensors, strict=True):
            for axis, size in enumerate(tensor.shape[: self.num_ragged]):
                row = row.narrow(axis, 0 if self.side == "right" else longest[axis] - size, size)
            row.copy_(tensor)
        return values


def _fits(number: float, dtype: torch.dtype) -> bool:
    if dtype == torch.bool:
        return number in (0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return limits.min <= number <= limits.max and number == int(number)
