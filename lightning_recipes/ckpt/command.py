"""The command line of ``lightning-recipes ckpt``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_recipes.checkpoints import (
    BrokenCheckpoint,
    check_finite,
    intact_checkpoints,
    read_checkpoint,
    why_not_resumable,
)
from lightning_recipes.ckpt.broken import printable
from lightning_recipes.ckpt.summary import summary

__all__ = ["main"]

_INTACT, _BROKEN, _NOT_FOUND = 0, 1, 2
_DESCRIPTION = """What is inside a checkpoint, and can it be trusted?

A file is read once, byte by byte: the zip directory, the checksum of every member, the entries that
Lightning needs, every weight finite. Then it is told: step, epoch, position in the data, versions,
weights, optimizers, callbacks, random states; whether it is intact, and whether a run can go on
from it. Nothing in it is run: files of strangers are safe to look at.

A folder is searched for *.ckpt, newest first, with the reason why one is refused. The first intact
one is what to resume from. A folder with .metadata is one sharded checkpoint.

  lightning-recipes ckpt runs/names/resume/step=000001500.ckpt
  lightning-recipes ckpt runs/names/resume
  lightning-recipes ckpt runs/names/resume && echo "there is something to resume from"

Exit status: 0 intact (of a folder: one is), 1 broken or not finite (of a folder: all), 2 nothing
there. A file of weights only is intact, though no run can go on from it."""


def main(arguments: Sequence[str]) -> int:
    """Print what is inside, and return the exit status.

    Args:
        arguments: What follows ``lightning-recipes ckpt``.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-recipes ckpt",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", type=Path, help="a checkpoint, or a folder of checkpoints")
    path: Path = parser.parse_args(arguments).path
    if not path.exists():
        sys.stderr.write(f"{printable(str(path))}: nothing is there\n")
        return _NOT_FOUND
    is_sharded = any((path / name).exists() for name in (".metadata", "meta.pt"))
    is_listed = path.is_dir() and not is_sharded and path.suffix != ".ckpt"
    return _list(path) if is_listed else _show(path)


def _show(path: Path) -> int:
    try:
        checkpoint = read_checkpoint(path)
    except BrokenCheckpoint as error:
        _print({"path": str(path), "intact": f"NO: {error.reason}"})
        return _BROKEN
    reason = why_not_resumable(checkpoint)
    nonfinite = _why_not_finite(path, checkpoint)
    _print(
        {
            "path": printable(str(path)),
            **summary(checkpoint),
            "finite": f"NO: {nonfinite}" if nonfinite else "yes",
            "intact": "yes",
            "resumable": f"NO: {reason}" if reason else "yes",
        }
    )
    return _BROKEN if nonfinite else _INTACT


def _why_not_finite(path: Path, checkpoint: dict[str, object]) -> str | None:
    try:
        check_finite(path, checkpoint)
    except BrokenCheckpoint as error:
        return error.reason
    return None


def _list(path: Path) -> int:
    judged = intact_checkpoints(path, finite=True, resumable=False)
    if not judged:
        sys.stderr.write(f"{printable(str(path))}: no *.ckpt in it\n")
        return _NOT_FOUND
    _print({printable(file.name): reason or "intact" for file, reason in judged.items()})
    return _INTACT if None in judged.values() else _BROKEN


def _print(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for topic, text in lines.items():
        sys.stdout.write(f"{topic.ljust(width)}  {text}\n")
