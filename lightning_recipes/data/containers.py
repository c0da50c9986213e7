"""What samples are built of: mappings, tuples, named tuples and dataclasses of fields."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "at",
    "column",
    "describe",
    "field_names",
    "fields",
    "first_unlike",
    "get",
    "join",
    "rebuild",
]


def field_names(sample: Any) -> tuple[Any, ...] | None:
    """Return the names of a container's fields, or None for what is a field itself."""
    if isinstance(sample, Mapping):
        return tuple(sample)
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return tuple(field.name for field in dataclasses.fields(sample))
    if isinstance(sample, tuple):
        return getattr(sample, "_fields", tuple(range(len(sample))))
    return None


def first_unlike(samples: Sequence[Any]) -> int | None:
    """Return which container has another type or other fields than the first, or None.

    The keys of a mapping may come in any order.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        keys = first.keys()
        alike = (type(sample) is type(first) and sample.keys() == keys for sample in samples)
    elif isinstance(first, tuple):
        size = len(first)
        alike = (type(sample) is type(first) and len(sample) == size for sample in samples)
    else:
        alike = (type(sample) is type(first) for sample in samples)
    return next((i for i, is_alike in enumerate(alike) if not is_alike), None)


def column(samples: Sequence[Any], name: Any) -> list[Any]:
    """Return one field of all containers, which are alike."""
    if isinstance(samples[0], Mapping) or isinstance(name, int):
        return [sample[name] for sample in samples]
    return [getattr(sample, name) for sample in samples]


def get(container: Any, name: Any) -> Any:
    """Return one field of a container."""
    return column([container], name)[0]


def rebuild(like: Any, names: tuple[Any, ...], values: list[Any]) -> Any:
    """Return a container like ``like`` with other values; a mapping becomes a dict.

    A dataclass is made without its ``__init__``, whose checks are for one sample, and has nothing
    but its fields: what else ``like`` remembers, e.g. a cached property, is about ``like``.
    """
    if isinstance(like, Mapping):
        return dict(zip(names, values, strict=True))
    if dataclasses.is_dataclass(like):
        kind: Any = type(like)
        built = kind.__new__(kind)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(built, name, value)  # also of a frozen one
        return built
    return like._make(values) if hasattr(like, "_make") else tuple(values)


def fields(sample: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every field, e.g. ``"meta.0"``; ``""`` if the sample is one."""
    names = field_names(sample)
    if names is None:
        yield path, sample
    for name in names or ():
        yield from fields(get(sample, name), join(path, name))


def join(path: str, name: Any) -> str:
    """Return the path of the field ``name`` inside ``path``."""
    return f"{path}.{name}" if path else str(name)


def at(path: str) -> str:
    """Return what messages call the field at ``path``."""
    return f"field {path!r}" if path else "the sample"


def describe(value: Any) -> str:
    """Return in words what ``value`` is."""
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {tuple(value)}"
    if isinstance(value, tuple):
        return f"a {type(value).__name__} of {len(value)} fields"
    return f"a {type(value).__name__}"
