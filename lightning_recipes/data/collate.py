"""Pad ragged samples to the longest of the batch, and keep the lengths."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import torch

from lightning_recipes.data.columns import check_alike, tensor_of_numbers, to_tensors
from lightning_recipes.data.containers import (
    at,
    column,
    describe,
    field_names,
    fields,
    first_unlike,
    join,
    rebuild,
)
from lightning_recipes.data.padding import Padding

__all__ = ["PadCollate"]


class PadCollate:
    """A ``collate_fn`` for samples with ragged fields, padded to the longest *of the batch*.

    A sample is a field or a dict, tuple, named tuple or dataclass of samples. What becomes of a
    field depends on its kind alone, never on whether lengths happen to agree in one batch:

    ================================================ ===============================================
    field                                            in the batch
    ================================================ ===============================================
    tensor, numpy array or list with a first axis    :class:`Padded` along that axis, (B, T, ...)
    one with ``ragged_dims`` n                       the same along n axes, (B, T_1, ..., T_n, ...)
    one named in ``fixed``                           stacked as it is; shapes must agree
    number, 0-d tensor or array                      tensor of shape (B,)
    string, bytes, None                              list
    ================================================ ===============================================

    Fields are called by their path: ``"tokens"`` in a dict, ``"0"`` in a tuple, ``"meta.tokens"``
    inside both; a sample that is one field is called ``""``. dtypes are kept. A mapping comes back
    as a dict, a dataclass without running its ``__init__``.

    A sequence may have length 0. If all of a batch have, they are padded to one step, or to one
    multiple, since few layers take an axis without any. An empty list takes its dtype and further
    axes from the other samples; if all are empty, the dtype is that of the pad value: int64 for 0,
    the default float for 0.0.

    Args:
        pad_value: What to pad with, or one per field: ``{"labels": -100}``, others 0.
        pad_to_multiple_of: Round padded lengths up, for kernels that like multiples of 8.
        max_length: Longest sequence allowed, in steps before rounding up, along every ragged axis;
            or one per field, others unlimited.
        on_too_long: What becomes of a longer sequence: ``"error"`` refuses it, ``"truncate"`` cuts
            it on the side where a shorter one is padded. So ``side="right"`` keeps the first
            ``max_length`` steps, ``side="left"`` the last; ``lengths`` counts what was kept.
        side: ``"right"`` pads after the sequence, ``"left"`` before it (:class:`LeftPadded`).
        ragged_dims: Fields of which several leading axes are ragged, and how many: with
            ``{"image": 2}`` samples are (H_i, W_i, ...), channels last, ``.lengths`` is (B, 2) and
            ``.mask`` (B, H, W). Padding, rounding and ``max_length`` apply to each.
        fixed: Fields with a first axis that is no sequence, e.g. an image's channels.

    Raises:
        ValueError: An argument is out of range; or, while collating: an empty batch, samples with
            different fields, ranks or dtypes, a sequence over ``max_length``, a pad value that the
            dtype cannot hold, a field named here that no sample has. The message names the field,
            the sample's place in the batch and the values.

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
        max_length: int | Mapping[str, int] | None = None,
        on_too_long: Literal["error", "truncate"] = "error",
        side: Literal["right", "left"] = "right",
        ragged_dims: Mapping[str, int] | None = None,
        fixed: Collection[str] = (),
    ) -> None:
        self.pad_value = pad_value
        self.pad_to_multiple_of = pad_to_multiple_of
        self.max_length = max_length
        self.on_too_long = on_too_long
        self.side = side
        self.ragged_dims = dict(ragged_dims or {})
        if isinstance(fixed, str):
            raise ValueError(f"fixed is a collection of field names, got the string {fixed!r}.")
        self.fixed = frozenset(fixed)
        self._check_arguments()
        padded = [arg for arg in (pad_value, max_length, ragged_dims) if isinstance(arg, Mapping)]
        named = frozenset[str]().union(*padded)
        if both := sorted(named & self.fixed):
            raise ValueError(
                f"A fixed field is not padded, so it has no pad_value, max_length or ragged_dims, "
                f"got {both} in both."
            )
        self._named = named | self.fixed

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of ``samples``."""
        if not samples:
            raise ValueError("PadCollate needs at least one sample, got an empty batch.")
        if self._named:
            paths = {path for path, _ in fields(samples[0])}
            if unknown := sorted(self._named - paths):
                raise ValueError(
                    f"pad_value, max_length, ragged_dims and fixed name fields of the samples, "
                    f"{sorted(paths)}, got {unknown}."
                )
        return self._collate(samples, "")

    def _collate(self, samples: Sequence[Any], path: str) -> Any:
        first = samples[0]
        if (names := field_names(first)) is not None:
            if (i := first_unlike(samples)) is not None:
                raise ValueError(
                    f"All samples must have the fields of the first, which is {describe(first)} in "
                    f"{at(path)}; sample {i} of the batch is {describe(samples[i])}."
                )
            columns = [self._collate(column(samples, name), join(path, name)) for name in names]
            return rebuild(first, names, columns)
        if first is None or isinstance(first, str | bytes):
            check_alike(samples, path, "type", type, "Strings and None come back as a list.")
            return list(samples)
        return self._collate_numbers(samples, path)

    def _collate_numbers(self, fields: Sequence[Any], path: str) -> Any:
        is_ragged = path in self.ragged_dims
        if not is_ragged and (numbers := tensor_of_numbers(fields)) is not None:
            return numbers
        padding = self._padding(path)
        tensors = to_tensors(fields, path, pad_value=padding.value, num_ragged=padding.num_ragged)
        if path in self.fixed or not (is_ragged or tensors[0].ndim):
            way_out = "Fixed fields are not padded."
            check_alike(tensors, path, "shape", lambda tensor: tuple(tensor.shape), way_out)
            return torch.stack(tensors)
        return padding.pad(tensors)

    def _padding(self, path: str) -> Padding:
        value, limit = self.pad_value, self.max_length
        return Padding(
            path=path,
            value=value.get(path, 0) if isinstance(value, Mapping) else value,
            multiple=self.pad_to_multiple_of or 1,
            max_length=limit.get(path) if isinstance(limit, Mapping) else limit,
            is_cut=self.on_too_long == "truncate",
            side=self.side,
            num_ragged=self.ragged_dims.get(path, 1),
        )

    def _check_arguments(self) -> None:
        for name, given, unit in (
            ("pad_to_multiple_of", self.pad_to_multiple_of, "steps"),
            ("max_length", self.max_length, "steps"),
            ("ragged_dims", self.ragged_dims, "axes per field"),
        ):
            for number in given.values() if isinstance(given, Mapping) else [given]:
                if number is not None and (type(number) is not int or number < 1):
                    raise ValueError(f"{name} is a number of {unit} >= 1, got {number!r}.")
        value = self.pad_value
        for pad_value in value.values() if isinstance(value, Mapping) else [value]:
            if not isinstance(pad_value, Real):
                raise ValueError(f"pad_value is a number, or one per field, got {pad_value!r}.")
        if self.side not in ("right", "left"):
            raise ValueError(f"side must be 'right' or 'left', got {self.side!r}.")
        if self.on_too_long not in ("error", "truncate"):
            raise ValueError(
                f"on_too_long must be 'error' or 'truncate', got {self.on_too_long!r}."
            )
        if self.on_too_long == "truncate" and self.max_length is None:
            raise ValueError("on_too_long='truncate' needs a max_length to cut at, got None.")
