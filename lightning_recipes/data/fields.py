"""What a sample is made of: a field, or a dict, tuple, named tuple or dataclass of samples."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["build", "field_names", "field_paths", "get_field"]


def field_names(sample: Any) -> tuple[Any, ...] | None:
    """Return the names of a container's fields, or None for a field."""
    if isinstance(sample, Mapping):
        return tuple(sample)
    if dataclasses.is_dataclass(sample):
        return tuple(field.name for field in dataclasses.fields(sample))
    if isinstance(sample, tuple):
        return getattr(sample, "_fields", tuple(range(len(sample))))
    return None


def get_field(sample: Any, name: Any) -> Any:
    """Return the field of a container that :func:`field_names` calls ``name``."""
    if isinstance(sample, Mapping) or isinstance(name, int):
        return sample[name]
    return getattr(sample, name)


def field_paths(sample: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every field, e.g. ``"meta.tokens"``; one field is ``""``."""
    names = field_names(sample)
    if names is None:
        yield path, sample
    for name in names or ():
        yield from field_paths(get_field(sample, name), f"{path}.{name}".strip("."))


def build(like: Any, names: tuple[Any, ...], fields: list[Any]) -> Any:
    """Return a container such as ``like`` with other fields; a mapping becomes a ``dict``."""
    if isinstance(like, Mapping):
        return dict(zip(names, fields, strict=True))
    if dataclasses.is_dataclass(like):
        built = copy.copy(like)
        for name, field in zip(names, fields, strict=True):
            object.__setattr__(built, name, field)  # also of a frozen one, or with init=False
        return built
    return like._make(fields) if hasattr(like, "_make") else tuple(fields)
