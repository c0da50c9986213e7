"""One field of all samples of a batch, as tensors that agree in dtype and rank."""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_recipes.data.containers import at, describe

__all__ = ["check_alike", "tensor_of_numbers", "to_tensors"]

_DTYPES: dict[type, type[np.generic]] = {int: np.int64, float: np.float64, bool: np.bool_}


def to_tensors(
    column: Sequence[Any], path: str, *, pad_value: float, num_ragged: int
) -> list[Tensor]:
    """Return the values of a field as tensors of one dtype and rank.

    Args:
        column: One tensor, array, number or list of numbers per sample. An empty list has neither
            a dtype nor further axes; it takes those of the others.
        path: Of the field, for messages.
        pad_value: Of the field; it has the dtype if all are empty lists.
        num_ragged: How many leading axes may differ; an empty list has length 0 along each.

    Raises:
        ValueError: A value is none of these, or dtypes or ranks differ.
    """
    kinds = set(map(type, column))
    if kinds == {Tensor}:
        tensors = list(column)
    elif kinds == {list} and (flat := _flat(column)) is not None:
        tensors = list(torch.split(flat, [len(numbers) for numbers in column]))
    else:
        tensors = _to_tensors_one_by_one(column, path, pad_value, num_ragged)
    way_out = "A number among sequences is a list of one."
    check_alike(tensors, path, "rank", attrgetter("ndim"), way_out)
    way_out = "Convert to one in the data set; an empty tensor or array has one, too."
    check_alike(tensors, path, "dtype", attrgetter("dtype"), way_out)
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise ValueError(f"PadCollate takes dense tensors; {at(path)} is of another layout.")
    return tensors


def tensor_of_numbers(numbers: Sequence[Any]) -> Tensor | None:
    """Return a 1-d tensor if all are ints, all floats or all bools of Python's; else None.

    The dtype is int64, the default float or bool, as ``torch.tensor`` has it, which is many times
    slower.
    """
    kinds = set(map(type, numbers))  # exact: a bool among ints would pass for one
    if len(kinds) != 1 or not kinds <= _DTYPES.keys():
        return None
    try:
        array = np.fromiter(numbers, _DTYPES[kinds.pop()], len(numbers))
    except OverflowError:
        return None  # whoever goes on one by one can say which
    tensor = torch.from_numpy(array)
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def check_alike(
    fields: Sequence[Any], path: str, what: str, key: Callable[[Any], Any], way_out: str
) -> None:
    """Raise a ValueError if ``key`` is not the same for all values of a field."""
    found = list(map(key, fields))
    if found.count(found[0]) < len(found):
        index = next(i for i, value in enumerate(found) if value != found[0])
        raise ValueError(
            f"All samples must have one {what} in {at(path)}; the first of the batch has "
            f"{found[0]}, sample {index} has {found[index]}. {way_out}"
        )


def _flat(lists: Sequence[list[Any]]) -> Tensor | None:
    return tensor_of_numbers(list(chain.from_iterable(lists)))


def _to_tensors_one_by_one(
    column: Sequence[Any], path: str, pad_value: float, num_ragged: int
) -> list[Tensor]:
    is_empty = [isinstance(field, list) and not field for field in column]
    known = [
        None if empty else _to_tensor(field, i, path)
        for i, (field, empty) in enumerate(zip(column, is_empty, strict=True))
    ]
    like = next((tensor for tensor in known if tensor is not None), None)
    if like is None:
        like = torch.empty((0,) * num_ragged, dtype=torch.tensor(pad_value).dtype)
    empty = like.new_empty((0,) * num_ragged + like.shape[num_ragged:])
    return [empty if tensor is None else tensor for tensor in known]


def _to_tensor(field: Any, index: int, path: str) -> Tensor:
    try:
        if isinstance(field, np.generic) or (
            isinstance(field, np.ndarray) and not field.flags.carray
        ):
            # torch warns about read-only memory and refuses negative strides
            field = np.require(field, requirements=["C", "W"])
        return torch.as_tensor(field)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"A field is, in all samples alike, a tensor, numpy array, number, list of numbers, "
            f"string or None; {at(path)} is {describe(field)} in sample {index} of the batch "
            f"({error})."
        ) from None
