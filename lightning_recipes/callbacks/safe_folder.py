"""Writing a checkpoint that is a folder such that it has its name only when it is complete."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import Strategy
from torch.distributed.checkpoint.api import CheckpointException

from lightning_recipes.callbacks.ranks import gather

__all__ = ["HiddenFolder", "flush", "remove_folder", "writing_to_hidden_folder"]


class HiddenFolder:
    """Has all ranks write their shards into ``.NAME.part`` beside the folder they are for.

    The ranks agree after each of three steps, so that what fails on one of them is known to all:
    the hidden folder is there, all have written, it has its name. The parts of a killed run are
    replaced by the next.

    Args:
        rank: This process's; rank 0 makes and names the folder.

    Attributes:
        error: Why the last folder was not written, the same on all ranks; None if it was.
    """

    def __init__(self, *, rank: int) -> None:
        self.rank = rank
        self.error: str | None = None

    def write(self, path: Path, save: Callable[[Path], None]) -> None:
        """Let all ranks ``save`` to a hidden folder, and give it its name: a collective."""
        part = path.with_name(f".{path.name}.part")
        self.error = (
            self._agree(lambda: self._on_rank_0(lambda: _make_empty(part)))
            # A folder that one rank cannot reach would leave the others in the midst of the saving.
            or self._agree(lambda: part.mkdir(exist_ok=True))
            or self._agree(lambda: save(part))
            or self._agree(lambda: self._on_rank_0(lambda: _name(part, path)))
        )
        if self.error is not None:
            self._on_rank_0(lambda: shutil.rmtree(part, ignore_errors=True))

    def _on_rank_0(self, action: Callable[[], None]) -> None:
        if self.rank == 0:
            action()

    def _agree(self, action: Callable[[], None]) -> str | None:
        mine: dict[int, str] = {}
        try:
            action()
        except CheckpointException as error:  # no Exception; of all ranks, with their tracebacks
            mine = {rank: _in_words(cause) for rank, (cause, _) in error.failures.items()}
        except Exception as error:  # whatever it is, the others wait for a word
            mine = {self.rank: _in_words(error)}
        errors = {rank: text for told in gather(mine) for rank, text in told.items()}
        return "; ".join(f"rank {rank}: {errors[rank]}" for rank in sorted(errors)) or None


@contextmanager
def writing_to_hidden_folder(strategy: Strategy, *, rank: int) -> Iterator[HiddenFolder]:
    """Let what the strategy saves inside go through a :class:`HiddenFolder`."""
    folder = HiddenFolder(rank=rank)

    def save_checkpoint(checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        def save(part: Path) -> None:
            type(strategy).save_checkpoint(strategy, checkpoint, part, storage_options)

        # rank 0's, as the strategies have it
        folder.write(Path(strategy.broadcast(filepath)), save)

    strategy.save_checkpoint = save_checkpoint  # type: ignore[method-assign]
    try:
        yield folder
    finally:
        del strategy.save_checkpoint


def remove_folder(path: Path) -> None:
    """Take a folder's name first: what a kill leaves half removed is no checkpoint."""
    hidden = path.with_name(f".{path.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():  # where a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _make_empty(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    part.unlink(missing_ok=True)
    part.mkdir(parents=True)


def _name(part: Path, path: Path) -> None:
    for file in part.iterdir():
        if file.is_file():
            flush(file)
    flush(part)
    if path.is_dir():  # the same step saved once more; a folder cannot replace one with content
        remove_folder(path)
    os.replace(part, path)
    flush(path.parent)
