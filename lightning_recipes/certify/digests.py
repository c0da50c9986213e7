"""Short digests of batches, weights and states, bit for bit."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["digest"]

_NUM_HEX_DIGITS = 16
_PLAIN = (bool, bytes, complex, float, int, str, type(None))


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that tell whether two values are the same, bit for bit.

    Two tensors are the same if dtype, shape and every bit are, on whatever device they are.
    Mappings, sequences, dataclasses and other objects with attributes are gone into; of an object
    without any, only the type counts, since its ``repr`` would be an address.

    Args:
        value: A tensor, an array, a number, a string, or anything built of them.

    Example:
        >>> digest(torch.tensor([1.0])) == digest({"x": torch.tensor([1.0])}["x"])
        True
        >>> digest(torch.tensor(0.0)) == digest(torch.tensor(-0.0))
        False
    """
    sha = hashlib.sha256()
    for part in _parts(value, inside=()):
        sha.update(part)
    return sha.hexdigest()[:_NUM_HEX_DIGITS]


def _parts(value: Any, inside: tuple[int, ...]) -> Iterator[Any]:
    """Yield what to hash: a head that says what follows, then bytes."""
    yield f"{type(value).__name__}:".encode()
    if isinstance(value, Tensor):
        yield from _tensor_parts(value)
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield from _nested_parts(enumerate(value.ravel().tolist()), inside)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield f"{value.dtype}{value.shape}:".encode()
        yield value.tobytes()
    elif isinstance(value, _PLAIN):
        yield f"{value!r};".encode()
    elif id(value) in inside:
        yield b"cycle;"
    else:
        yield from _nested_parts(_items(value), (*inside, id(value)))


def _nested_parts(items: Any, inside: tuple[int, ...]) -> Iterator[Any]:
    yield b"("
    for key, item in items:
        yield f"{key!r}=".encode() if isinstance(key, _PLAIN) else b"?="
        yield from _parts(item, inside)
    yield b")"


def _items(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, (set, frozenset)):
        return enumerate(sorted(value, key=repr))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return getattr(value, "__dict__", {}).items()


def _tensor_parts(tensor: Tensor) -> Iterator[Any]:
    yield f"{tensor.dtype}{tuple(tensor.shape)}:".encode()
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        yield from _tensor_parts(tensor.indices())
        yield from _tensor_parts(tensor.values())
        return
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # A conjugated or negated view has the bits of its base. Flat, because a scalar has no last
    # dimension to see as bytes; as bytes, because numpy has no bfloat16.
    tensor = tensor.resolve_conj().resolve_neg().cpu().reshape(-1).contiguous()
    yield tensor.view(torch.uint8).numpy()
