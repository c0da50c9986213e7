"""Pad ragged samples to the longest of the batch, and keep the lengths."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_recipes.data.fields import build, field_names, field_paths, get_field
from lightning_recipes.data.padded import LeftPadded, Padded

__all__ = ["PadCollate"]


class PadCollate:
    """A ``collate_fn`` for samples with ragged fields, padded to the longest *of the batch*.

    A sample is a field or a dict, tuple, named tuple or dataclass of samples. What becomes of a
    field depends on its kind alone, never on whether lengths happen to agree in one batch:

    ================================================ ===============================================
    field                                            in the batch
    ================================================ ===============================================
    tensor, numpy array or list with a first axis    :class:`Padded` along that axis
    one named in ``fixed``                           stacked as it is; shapes must agree
    number, 0-d tensor or array                      tensor of shape (B,)
    string, bytes, None                              list
    ================================================ ===============================================

    Fields are called by their path: ``"tokens"`` in a dict, ``"0"`` in a tuple, ``"meta.tokens"``
    inside both; a sample that is one field is called ``""``. dtypes are kept.

    Args:
        pad_value: What to pad with, or one per field: ``{"labels": -100}``, others 0.
        pad_to_multiple_of: Round the padded length up, for kernels that like multiples of 8.
        max_length: Longest sequence allowed, in steps before rounding up; a longer one is an error.
        side: ``"right"`` pads after the sequence, ``"left"`` before it (:class:`LeftPadded`).
        fixed: Fields with a first axis that is no sequence, e.g. an image's channels.

    Raises:
        ValueError: An argument is out of range; or, while collating: an empty batch, samples with
            different fields, ranks or dtypes, a sequence of length 0 or over ``max_length``, a pad
            value that the dtype cannot hold, a field named here that no sample has. The message
            names the field.

    Example:
        >>> collate = PadCollate(pad_value={"labels": -100})
        >>> batch = collate([{"labels": [1, 2, 3]}, {"labels": [4]}])
        >>> batch["labels"].values
        tensor([[   1,    2,    3],
                [   4, -100, -100]])
        >>> batch["labels"].mask.sum(dim=1)
        tensor([3, 1])
    """

    def __init__(
        self,
        *,
        pad_value: float | Mapping[str, float] = 0,
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        side: Literal["right", "left"] = "right",
        fixed: Collection[str] = (),
    ) -> None:
        for name, value in (("pad_to_multiple_of", pad_to_multiple_of), ("max_length", max_length)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is a number of steps >= 1, or None, got {value}.")
        if side not in ("right", "left"):
            raise ValueError(f"side must be 'right' or 'left', got {side!r}.")
        if isinstance(fixed, str):
            raise ValueError(f"fixed is a collection of field names, got the string {fixed!r}.")
        self.pad_value = pad_value
        self.pad_to_multiple_of = pad_to_multiple_of
        self.max_length = max_length
        self.side = side
        self.fixed = frozenset(fixed)
        self._named = self.fixed | (set(pad_value) if isinstance(pad_value, Mapping) else set())

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of ``samples``."""
        if not samples:
            raise ValueError("PadCollate needs at least one sample, got an empty batch.")
        if self._named:
            fields = {path for path, _ in field_paths(samples[0])}
            if unknown := sorted(self._named - fields):
                raise ValueError(
                    f"pad_value and fixed name fields of the samples, {sorted(fields)}, got "
                    f"{unknown}."
                )
        return self._collate(samples, "")

    def _collate(self, samples: Sequence[Any], path: str) -> Any:
        first = samples[0]
        if (names := field_names(first)) is not None:
            for i, sample in enumerate(samples):
                if type(sample) is not type(first) or set(field_names(sample) or ()) != set(names):
                    raise ValueError(
                        f"All samples must have the fields of the first, {names} in {_at(path)}; "
                        f"sample {i} of the batch is {_describe(sample)}."
                    )
            columns = [
                self._collate(
                    [get_field(sample, name) for sample in samples], f"{path}.{name}".strip(".")
                )
                for name in names
            ]
            return build(first, names, columns)
        if first is None or isinstance(first, str | bytes):
            _check_alike(samples, path, type)
            return list(samples)
        tensors = [_to_tensor(sample, path) for sample in samples]
        is_fixed = path in self.fixed
        for i, tensor in enumerate(tensors):
            if tensor.ndim and not is_fixed and not len(tensor):
                raise ValueError(
                    f"A sequence has at least one step; sample {i} of the batch has none in "
                    f"{_at(path)}. Leave it out of the data set, or give it a begin marker."
                )
        _check_alike(tensors, path, lambda t: (t.dtype, t.ndim))
        if tensors[0].ndim == 0 or is_fixed:
            _check_alike(tensors, path, lambda t: tuple(t.shape))
            return torch.stack(tensors)
        _check_alike(tensors, path, lambda t: tuple(t.shape[1:]))
        return self._pad(tensors, path)

    def _pad(self, tensors: list[Tensor], path: str) -> Padded:
        lengths = [len(tensor) for tensor in tensors]
        longest = max(lengths)
        if self.max_length is not None and longest > self.max_length:
            raise ValueError(
                f"A sequence has at most max_length={self.max_length} steps; sample "
                f"{lengths.index(longest)} of the batch has {longest} in {_at(path)}. Truncate it "
                "in the data set."
            )
        multiple = self.pad_to_multiple_of or 1
        num_steps = -(-longest // multiple) * multiple
        first = tensors[0]
        values = first.new_full(
            (len(tensors), num_steps, *first.shape[1:]), self._pad_value(path, first.dtype)
        )
        for row, tensor, length in zip(values, tensors, lengths, strict=True):
            if self.side == "right":
                row[:length] = tensor
            else:
                row[num_steps - length :] = tensor
        return (Padded if self.side == "right" else LeftPadded)(values, torch.tensor(lengths))

    def _pad_value(self, path: str, dtype: torch.dtype) -> float:
        value = self.pad_value
        number = value.get(path, 0) if isinstance(value, Mapping) else value
        if dtype == torch.bool:
            fits = number in (0, 1)
        elif dtype.is_floating_point or dtype.is_complex:
            fits = not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
        else:
            limits = torch.iinfo(dtype)
            fits = limits.min <= number <= limits.max and number == int(number)
        if not fits:
            raise ValueError(
                f"The pad value {number} does not fit the dtype {dtype} of {_at(path)}. Choose "
                "another, or another dtype in the data set."
            )
        return number


def _to_tensor(field: Any, path: str) -> Tensor:
    try:
        if isinstance(field, np.ndarray | np.generic):
            # torch warns about read-only memory and refuses negative strides
            field = np.require(field, requirements=["C", "W"])
        return torch.as_tensor(field)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"A field is a tensor, numpy array, number, list of numbers, string or None; "
            f"{_at(path)} is {_describe(field)} ({error})."
        ) from None


def _check_alike(fields: Sequence[Any], path: str, key: Any) -> None:
    kinds = [key(field) for field in fields]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"All samples must agree in {_at(path)}; the first of the batch has {kinds[0]}, "
                f"sample {i} has {kind}."
            )


def _at(path: str) -> str:
    return f"field {path!r}" if path else "the sample"


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {tuple(value)}"
    if isinstance(value, tuple):
        return f"a {type(value).__name__} of {len(value)} fields"
    return f"a {type(value).__name__}"
