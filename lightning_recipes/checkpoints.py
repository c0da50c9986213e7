"""Which checkpoints of a run can be trusted, found out without running anything from them.

A run that is killed while it writes, a full disk, a copy that broke off: the newest file is the one
most likely to be broken, and the one that is resumed from. :func:`newest_intact` finds the newest
that is not::

    trainer.fit(module, datamodule=data, ckpt_path=newest_intact("runs/names/resume"))
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_recipes.ckpt.archive import load_archive, peek_archive
from lightning_recipes.ckpt.broken import BrokenCheckpoint
from lightning_recipes.ckpt.finite import nonfinite_weight
from lightning_recipes.ckpt.shards import check_shards_finite, read_shards

__all__ = [
    "BrokenCheckpoint",
    "check_finite",
    "intact_checkpoints",
    "judged_checkpoints",
    "newest_intact",
    "read_checkpoint",
    "read_run",
    "verify",
    "why_not_resumable",
]

# What Lightning (2.6.6) writes into every file, and what it asks for only when a run goes on.
_REQUIRED: dict[str, type] = {
    "state_dict": Mapping,
    "loops": dict,
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
}
_REQUIRED_TO_RESUME = ("optimizer_states", "lr_schedulers")


def verify(path: str | os.PathLike[str], *, finite: bool = False, resumable: bool = True) -> None:
    """Return if a file or folder is a complete Lightning checkpoint, and else raise why not.

    A file is read once: the zip directory, the checksum of every member, then the values (plain
    types and tensors, loaded with ``weights_only=True`` and mapped, so that no byte is read twice),
    and the entries that Lightning asks for: ``state_dict``, ``loops``, ``epoch``, ``global_step``,
    ``pytorch-lightning_version``, and to resume ``optimizer_states`` and ``lr_schedulers``.

    A folder is a sharded checkpoint: ``meta.pt`` is checked like a file, and every shard that
    ``.metadata`` names is there and long enough. The bytes of the shards, which can be very many,
    are read only with ``finite=True``.

    Nothing from the file is run. What it may ask for is memory: on a stranger's file, limit that.

    Args:
        path: The file or folder.
        finite: Also look at every weight, a second pass over those: NaN is refused, and an infinity
            unless the tensor has nothing but infinities and zeros (a mask in a buffer).
        resumable: Whether a run is to go on from it; False takes files of weights only, too.

    Raises:
        BrokenCheckpoint: It is not; the attribute ``reason`` says why. For damaged content nothing
            else is raised, whatever the bytes.
        FileNotFoundError: There is nothing at the path.
    """
    path = Path(path)
    checkpoint = read_checkpoint(path)
    if resumable and (reason := why_not_resumable(checkpoint)):
        raise BrokenCheckpoint(path, reason)
    if finite:
        check_finite(path, checkpoint)


def newest_intact(
    directory: str | os.PathLike[str], *, finite: bool = False, resumable: bool = True
) -> Path | None:
    """Return the newest checkpoint that :func:`verify` takes; None if there is none.

    Older ones are not read. Which are looked at, and what is newest: :func:`intact_checkpoints`.

    Args:
        directory: The folder; one that does not exist holds none.
        finite: As in :func:`verify`.
        resumable: As in :func:`verify`.
    """
    judged = judged_checkpoints(directory, finite=finite, resumable=resumable)
    return next((path for path, reason in judged if reason is None), None)


def intact_checkpoints(
    directory: str | os.PathLike[str], *, finite: bool = False, resumable: bool = True
) -> dict[Path, str | None]:
    """Return every checkpoint of a folder, newest first, with the reason why it is refused.

    The reason of an intact one is None::

        intact = [path for path, reason in intact_checkpoints(folder).items() if reason is None]

    Checkpoints are the files and folders ``*.ckpt`` in it, not those in folders below; a name that
    begins with "." is a temporary file. The newest has the highest step: that in its name
    (``step=000000123.ckpt``, ``epoch=1-step=123-v1.ckpt``), or else, as for ``last.ckpt``, the
    ``global_step`` inside. Of equal steps the one written last is the newest, and one without a
    readable step is the oldest.

    Args:
        directory: The folder; one that does not exist holds none.
        finite: As in :func:`verify`.
        resumable: As in :func:`verify`.
    """
    return dict(judged_checkpoints(directory, finite=finite, resumable=resumable))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a complete Lightning checkpoint, with every byte of a file checked, tensors mapped.

    Raises:
        BrokenCheckpoint: It is not one.
        FileNotFoundError: There is nothing at the path.
    """
    checkpoint = read_shards(path) if path.is_dir() else load_archive(path)
    if not isinstance(checkpoint, dict):
        found = type(checkpoint).__name__
        raise BrokenCheckpoint(path, f"not a Lightning checkpoint: it holds a {found}, no dict")
    for key, kind in _REQUIRED.items():
        if key not in checkpoint:
            held = ", ".join(map(repr, list(checkpoint)[:5])) or "nothing"
            raise BrokenCheckpoint(
                path, f"not a complete Lightning checkpoint: it lacks {key!r} and holds {held}"
            )
        if not isinstance(checkpoint[key], kind):
            found = type(checkpoint[key]).__name__
            raise BrokenCheckpoint(path, f"not a Lightning checkpoint: {key!r} is a {found}")
    return checkpoint


def read_run(path: Path) -> dict[str, Any]:
    """Return what an intact checkpoint holds of the run; of a folder, all but the tensors.

    Only its structure is checked: for a checkpoint that :func:`verify` has taken.
    """
    checkpoint: dict[str, Any] = peek_archive(path / "meta.pt" if path.is_dir() else path)
    return checkpoint


def why_not_resumable(checkpoint: Mapping[str, Any]) -> str | None:
    """Return why no run can go on from a complete checkpoint; None if one can."""
    lacking = [key for key in _REQUIRED_TO_RESUME if not isinstance(checkpoint.get(key), list)]
    return f"weights only: it lacks {', '.join(map(repr, lacking))}" if lacking else None


def check_finite(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Look at every weight of a checkpoint that was read from a path.

    Raises:
        BrokenCheckpoint: One of them is not finite.
    """
    if path.is_dir():
        check_shards_finite(path)
    elif found := nonfinite_weight(checkpoint["state_dict"]):
        raise BrokenCheckpoint(path, found)


def judged_checkpoints(
    directory: str | os.PathLike[str], *, finite: bool = False, resumable: bool = True
) -> Iterator[tuple[Path, str | None]]:
    """Yield what :func:`intact_checkpoints` returns, one by one: nothing is read ahead."""
    for path in _newest_first(Path(directory)):
        try:
            verify(path, finite=finite, resumable=resumable)
        except BrokenCheckpoint as error:
            yield path, error.reason
        except FileNotFoundError:
            if path.is_symlink():
                yield path, f"a link to {os.readlink(path)}, where nothing is"
            # else a run that keeps its last few has deleted it meanwhile
        else:
            yield path, None


def _newest_first(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    found = [path for path in directory.glob("*.ckpt") if not path.name.startswith(".")]
    return sorted(found, key=_age, reverse=True)


def _age(path: Path) -> tuple[int, int, str]:
    step = re.search(r"(?<![A-Za-z0-9_])step=(\d+)(?!\.?\d)", path.stem)
    try:
        written = path.lstat().st_mtime_ns
    except FileNotFoundError:  # deleted meanwhile, as verifying it will find
        written = 0
    return (int(step[1]) if step else _step_inside(path)), written, path.name


def _step_inside(path: Path) -> int:
    try:
        checkpoint = read_run(path)
    except (BrokenCheckpoint, FileNotFoundError):
        return -1  # whatever is wrong with it is told when it is verified
    step = checkpoint.get("global_step") if isinstance(checkpoint, dict) else None
    return step if isinstance(step, int) else -1
