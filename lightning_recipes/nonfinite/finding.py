"""One place at which numbers are not finite, in words and in plain types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

__all__ = ["Finding", "Kind", "Values", "is_float", "listed"]

Kind = Literal["batch", "parameters", "buffers", "activation", "loss", "gradient", "replay"]

_MOST_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a tensor holds, in numbers.

    Attributes:
        num_nan: How many are NaN.
        num_inf: How many are +inf.
        num_neg_inf: How many are -inf.
        num_total: How many there are.
        rows: Which rows of the first axis they are in, e.g. samples of a batch; empty for all.
        num_rows: The length of the first axis.
        low: The smallest finite one; None if none is finite.
        high: The largest finite one; None if none is finite.
    """

    num_nan: int
    num_inf: int
    num_neg_inf: int
    num_total: int
    rows: list[int]
    num_rows: int
    low: float | None
    high: float | None

    @classmethod
    def of(cls, tensor: Tensor) -> "Values":
        """Look at a tensor; waits for its device."""
        values = _plain(tensor.detach())
        is_finite = values.isfinite()
        finite = values[is_finite].float()
        num_rows = len(values) if values.ndim else 1
        is_bad_row = (~is_finite).reshape(max(num_rows, 1), -1).any(1)
        rows = is_bad_row.nonzero().flatten().tolist()
        return cls(
            num_nan=int(values.isnan().sum()),
            num_inf=int((values == float("inf")).sum()),
            num_neg_inf=int((values == float("-inf")).sum()),
            num_total=values.numel(),
            rows=rows if len(rows) < num_rows else [],
            num_rows=num_rows,
            low=float(finite.min()) if finite.numel() else None,
            high=float(finite.max()) if finite.numel() else None,
        )

    @property
    def is_finite(self) -> bool:
        """Whether every number is."""
        return not (self.num_nan or self.num_inf or self.num_neg_inf)

    @property
    def is_masked(self) -> bool:
        """Whether -inf is all that is not finite: that is how a mask is written, too."""
        return bool(self.num_neg_inf) and not (self.num_nan or self.num_inf)

    @property
    def range(self) -> str:
        """The finite ones, e.g. ``[-1.2, 3]``."""
        return "[]" if self.low is None else f"[{self.low:.4g}, {self.high:.4g}]"

    def __str__(self) -> str:
        counts = {"nan": self.num_nan, "inf": self.num_inf, "-inf": self.num_neg_inf}
        parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        rest = "" if self.low is None else f", the finite ones in {self.range}"
        where = f", in row {listed(self.rows)} of {self.num_rows}" if self.rows else ""
        return f"{parts or 'all finite'} of {self.num_total}{where}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A place at which numbers are not finite.

    Attributes:
        kind: What it is: a field of the batch, parameters, buffers, an activation, the loss,
            gradients, or a replay that did not come to its end.
        name: Which one, e.g. ``output of network.3 (LayerNorm)``.
        detail: How many, and the finite range.
        before: What was finite just before, with its range; empty if unknown.
        is_masked: Whether -inf is all there is.
    """

    kind: Kind
    name: str
    detail: str
    before: str = ""
    is_masked: bool = False

    @classmethod
    def in_tensor(cls, kind: Kind, name: str, tensor: Tensor, before: str = "") -> "Finding":
        """Describe what a tensor holds; waits for its device."""
        values = Values.of(tensor)
        return cls(
            kind=kind, name=name, detail=str(values), before=before, is_masked=values.is_masked
        )

    @property
    def is_certain(self) -> bool:
        """Whether it says what is wrong: -inf in a batch or an activation can be a mask."""
        return self.kind in ("loss", "gradient") or not (self.is_masked or self.kind == "replay")

    def __str__(self) -> str:
        before = f"; just before: {self.before}" if self.before else ""
        return f"{self.kind} {self.name}: {self.detail}{before}".replace(" : ", ": ")


def is_float(value: object) -> bool:
    """Return whether a value is a tensor that can hold a NaN."""
    return isinstance(value, Tensor) and (torch.is_floating_point(value) or value.is_complex())


def listed(items: Sequence[object]) -> str:
    """Return the first few of something, and how many more there are."""
    more = len(items) - _MOST_NAMES
    return ", ".join(map(str, items[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")


def _plain(tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
