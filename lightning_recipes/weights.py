"""Weights from a file into a module: all of them, or an error that says which not."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_recipes.ckpt.archive import is_old_format, load_archive, load_old_format
from lightning_recipes.ckpt.broken import printable

__all__ = ["LoadedWeights", "WeightsDoNotFit", "load_weights"]

# What DistributedDataParallel and torch.compile put around a module.
_WRAPPERS = {"module", "_orig_mod"}


class WeightsDoNotFit(ValueError):  # noqa: N818 - it says what is the case
    """The weights in a file are not those of the module; its text is a table of the differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """What :func:`load_weights` did.

    Attributes:
        loaded: How many entries were loaded.
        missing: Entries of the module that keep their values: the file has none, as was allowed.
        mismatched: Entries of the module that keep theirs: the file has others, as was allowed.
        unexpected: Entries of the file that were left out, as was allowed.
        converted: Entries whose numbers were rounded or widened to the module's dtype.
    """

    loaded: int
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()


def load_weights(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    prefix: str = "",
    allow_missing: Sequence[str] = (),
    allow_mismatched: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
) -> LoadedWeights:
    """Load the weights of a Lightning checkpoint, or of a file with a state dict, into a module.

    Every entry of the module's state dict is found in the file, with the same shape and kind of
    number, and the other way round; or nothing is loaded at all. There is no ``strict=False``,
    which leaves a misspelt layer at its random start without a word: say which entries may differ,
    as patterns of their names (``fnmatch``: ``*`` for anything, dots included)::

        load_weights(module, "best.ckpt")
        load_weights(module, "best.ckpt", allow_mismatched=["head.*"])  # other classes
        load_weights(net, "best.ckpt", prefix="net.")  # of the LightningModule only its net

    The prefixes of wrappers, ``module.`` (DDP) and ``_orig_mod.`` (``torch.compile``), make no
    difference, on either side and at any depth. Between floating-point formats numbers are
    converted. Weights go to where the module's are, so there is nothing to map; the file's
    tensors are mapped, and read as they are copied. The file's checksums are checked, it is loaded
    with ``weights_only=True``, and nothing from it is run.

    Args:
        module: Any module; of its gradients, mode and device nothing changes.
        path: A file of ``Trainer.save_checkpoint`` or ``torch.save(module.state_dict(), path)``.
        prefix: Take only the entries of the file that begin so, without it.
        allow_missing: Entries of the module that the file need not have.
        allow_mismatched: Entries of the module that keep their values where the file's have another
            shape or kind of number.
        allow_unexpected: Entries of the file that the module need not have.

    Returns:
        What was loaded and what was tolerated.

    Raises:
        WeightsDoNotFit: An entry is missing, unexpected or mismatched and no pattern allows it.
        BrokenCheckpoint: The file is damaged, or holds more than plain types and tensors.
        ValueError: It holds no state dict, nothing begins with the prefix, or a pattern is a string
            by itself instead of a list.
        FileNotFoundError: There is no such file.
    """
    for name, patterns in (
        ("allow_missing", allow_missing),
        ("allow_mismatched", allow_mismatched),
        ("allow_unexpected", allow_unexpected),
    ):
        if isinstance(patterns, str):
            raise ValueError(f"{name} is a list of patterns, got {patterns!r}: [{patterns!r}].")
    theirs = _read(Path(path))
    if prefix:
        theirs = {k.removeprefix(prefix): v for k, v in theirs.items() if k.startswith(prefix)}
        if not theirs:
            raise ValueError(f"No weight in {path} begins with prefix={prefix!r}.")
    own = module.state_dict()
    theirs = _as_named_by(own, theirs, path)
    both = [name for name in own if name in theirs]
    differences = {name: _difference(own[name], theirs[name]) for name in both}
    mismatched = [name for name in both if differences[name]]
    missing = [name for name in own if name not in theirs]
    unexpected = [name for name in theirs if name not in own]
    rows = [
        *(("missing", name, _kind(own[name]), "") for name in _denied(missing, allow_missing)),
        *(
            ("mismatched", name, _kind(own[name]), _kind(theirs[name]))
            for name in _denied(mismatched, allow_mismatched)
        ),
        *(
            ("unexpected", name, "", _kind(theirs[name]))
            for name in _denied(unexpected, allow_unexpected)
        ),
    ]
    if rows:
        raise WeightsDoNotFit(_complaint(module, path, rows, num_fitting=len(both)))
    fitting = {name: theirs[name] for name in both if not differences[name]}
    module.load_state_dict(fitting, strict=False)
    return LoadedWeights(
        loaded=len(fitting),
        missing=tuple(missing),
        mismatched=tuple(mismatched),
        unexpected=tuple(unexpected),
        converted=tuple(name for name in fitting if _is_converted(own[name], fitting[name])),
    )


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder. The shards of one have to be put together first: "
            "python -m lightning.pytorch.utilities.consolidate_checkpoint FOLDER"
        )
    content = load_old_format(path) if is_old_format(path) else load_archive(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    is_state_dict = isinstance(content, Mapping) and all(isinstance(key, str) for key in content)
    if not is_state_dict or not any(isinstance(value, Tensor) for value in content.values()):
        held = list(content)[:5] if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(
            "A Lightning checkpoint or a state dict is needed, a dict of names and tensors; "
            f"{path} holds {printable(repr(held))}."
        )
    return dict(content)


def _as_named_by(
    own: Iterable[str], theirs: Mapping[str, Any], path: str | os.PathLike[str]
) -> dict[str, Any]:
    names = set(own)
    bare = {_unwrapped(name): name for name in own}
    renamed: dict[str, Any] = {}
    for name, value in theirs.items():
        # A module may well call a layer "module", so a name that fits is left as it is.
        mine = name if name in names else bare.get(_unwrapped(name), name)
        if mine in renamed:
            raise ValueError(f"{path} has two entries that are both {mine!r}, one is {name!r}.")
        renamed[mine] = value
    return renamed


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _denied(names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in allowed)]


def _difference(mine: Any, given: Any) -> bool:
    """Whether one cannot be loaded into the other; what is no tensor is the module's own affair."""
    if not (isinstance(mine, Tensor) and isinstance(given, Tensor)):
        return isinstance(mine, Tensor) != isinstance(given, Tensor)
    if is_lazy(mine):
        return False
    return mine.shape != given.shape or _number(mine) != _number(given)


def _number(tensor: Tensor) -> object:
    return "floating" if tensor.is_floating_point() else tensor.dtype


def _is_converted(mine: Any, given: Any) -> bool:
    return isinstance(mine, Tensor) and not is_lazy(mine) and mine.dtype != given.dtype


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    shape = "lazy" if is_lazy(value) else "x".join(map(str, value.shape)) or "scalar"
    return f"{shape} {str(value.dtype).removeprefix('torch.')}"


def _complaint(
    module: nn.Module,
    path: str | os.PathLike[str],
    rows: Sequence[tuple[str, str, str, str]],
    *,
    num_fitting: int,
) -> str:
    table = [("", "entry", "module", "file"), *rows]
    widths = [max(len(printable(row[i])) for row in table) for i in range(4)]
    lines = [
        "  ".join(printable(c).ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    ways = ", ".join(f"allow_{kind}=[...]" for kind in dict.fromkeys(row[0] for row in rows))
    return (
        f"The weights in {path} do not fit {type(module).__name__}; nothing was loaded "
        f"({num_fitting} entries have the same name).\n\n" + "\n".join(lines) + "\n\n"
        f"Where a layer may keep its own start or be left out, name it: {ways}. Where all names "
        "differ by a beginning, prefix=... takes one part of the file."
    )
