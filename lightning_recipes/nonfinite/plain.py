"""A batch as plain types, and back: named tuples and dataclasses by their names."""

import dataclasses
import sys
from typing import Any

from torch import Tensor

__all__ = ["from_plain", "num_bytes", "to_plain"]

_TYPE, _FIELDS = "__type__", "__fields__"


def to_plain(value: Any) -> Any:
    """Return a copy in host memory that ``torch.load(weights_only=True)`` reads.

    Raises:
        TypeError: Something in it is neither a tensor, a number, a text, None, nor a dict, list,
            tuple, named tuple or dataclass of such.
    """
    if isinstance(value, Tensor):
        # A copy, also on the host: a view would be saved with all of the tensor that it looks at.
        return value.detach().as_subclass(Tensor).to("cpu", copy=True)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # a number of numpy's is a float, too, but not a plain one
    if isinstance(value, dict):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _named(value, {name: getattr(value, name) for name in value._fields})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _named(value, {field.name: getattr(value, field.name) for field in fields})
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(to_plain, value))
    raise TypeError(f"{type(value).__name__} is no plain type")


def from_plain(value: Any) -> Any:
    """Return what :func:`to_plain` was given.

    A type is looked up by name among the modules that are imported already, only a named tuple is
    called, and a dataclass is put together field by field: a file cannot have anything else run.

    Raises:
        ValueError: A type is not there.
    """
    if isinstance(value, dict):
        items = {key: from_plain(item) for key, item in value.items() if key != _TYPE}
        return _made(_found(value[_TYPE]), items[_FIELDS]) if _TYPE in value else items
    if isinstance(value, list | tuple):
        return type(value)(from_plain(item) for item in value)
    return value


def num_bytes(value: Any) -> int:
    """Return how much memory the tensors of plain types take."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    items = value.values() if isinstance(value, dict) else value
    return sum(map(num_bytes, items)) if isinstance(value, dict | list | tuple) else 0


def _named(value: Any, fields: dict[str, Any]) -> dict[str, Any]:
    kind = type(value)
    return {_TYPE: f"{kind.__module__}:{kind.__qualname__}", _FIELDS: to_plain(fields)}


def _made(kind: type, fields: dict[str, Any]) -> Any:
    if not dataclasses.is_dataclass(kind):
        return kind(**fields)
    # Not called: what is computed when it is made, is among the fields already.
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _found(name: str) -> type:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    is_named_tuple = isinstance(found, type) and issubclass(found, tuple)
    is_known = hasattr(found, "_fields") if is_named_tuple else dataclasses.is_dataclass(found)
    if not (is_known and isinstance(found, type)):
        raise ValueError(
            f"The batch holds a {path} of {module}, which is not imported here. Import that module "
            "first."
        )
    return found
