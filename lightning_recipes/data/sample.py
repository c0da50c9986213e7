"""What can be done with any sample: copy it, count its bytes, compare it with another."""

import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_recipes.data.containers import field_names, get, rebuild

__all__ = ["copy_sample", "first_difference", "sample_bytes"]

# What a small one takes beside its numbers: measured with torch 2.13 and numpy 2.4.
_TENSOR_BYTES = 512
_ARRAY_BYTES = 128


def copy_sample(sample: Any) -> Any:
    """Return a sample that shares no memory with ``sample``; a mapping becomes a ``dict``.

    Raises:
        TypeError: It holds something else than dense tensors, numpy arrays, numbers, strings, bytes
            and None in lists, tuples, named tuples, mappings and dataclasses.
    """
    return _copy(sample, "")


def sample_bytes(sample: Any) -> int:
    """Return about how much memory a copy of ``sample`` takes."""
    if isinstance(sample, Tensor):
        return _TENSOR_BYTES + sample.nbytes
    if isinstance(sample, np.ndarray):
        return _ARRAY_BYTES + sample.nbytes
    names = _names(sample) or ()
    return sys.getsizeof(sample) + sum(sample_bytes(get(sample, name)) for name in names)


def first_difference(one: Any, two: Any) -> str | None:
    """Return the path of the first field that is not the same bit by bit, or None."""
    for first, second in zip_longest(_leaves(one, ""), _leaves(two, "")):
        if first is None or second is None or first[0] != second[0]:
            return str((first or second)[0])
        if not _is_same(first[1], second[1]):
            return str(first[0])
    return None


def _copy(sample: Any, path: str) -> Any:
    if isinstance(sample, Tensor) and sample.layout == torch.strided:
        return sample.detach().clone()
    if isinstance(sample, np.ndarray) and not sample.dtype.hasobject:
        return sample.copy(order="K")
    if sample is None or isinstance(sample, int | float | complex | str | bytes | np.generic):
        return sample
    names = _names(sample)
    if names is not None:
        copies = [_copy(get(sample, name), _join(path, name)) for name in names]
        return copies if isinstance(sample, list) else rebuild(sample, names, copies)
    raise TypeError(
        "A sample is made of dense tensors, numpy arrays, numbers, strings, bytes and None in "
        f"lists, tuples, dicts and dataclasses; {f'field {path!r}' if path else 'the sample'} is a "
        f"{type(sample).__name__}. Convert it in the data set, an image to a tensor or array."
    )


def _leaves(sample: Any, path: str) -> Iterator[tuple[str, Any]]:
    names = _names(sample)
    if names is None:
        yield path, sample
    for name in names or ():
        yield from _leaves(get(sample, name), _join(path, name))


def _names(sample: Any) -> tuple[Any, ...] | None:
    return tuple(range(len(sample))) if isinstance(sample, list) else field_names(sample)


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}".strip(".")


def _is_same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor | np.ndarray):
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        return _bytes(one) == _bytes(two)
    return bool(one == two or (one != one and two != two))  # the second for NaN


def _bytes(values: Any) -> bytes:
    if isinstance(values, Tensor):
        values = values.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    data: bytes = values.tobytes()
    return data
