"""Writing a checkpoint such that a failure costs nothing but the checkpoint."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn

from lightning_recipes.callbacks.loop_state import writes_folders
from lightning_recipes.callbacks.safe_folder import flush, remove_folder, writing_to_hidden_folder

__all__ = ["SafeCheckpointIO", "remove_safely", "write_safely"]


def write_safely(trainer: Trainer, path: str) -> str | None:
    """Save a checkpoint; return what went wrong, on all ranks, or None: a collective.

    Lightning (2.6.6) lets an error of rank 0, which alone writes, leave the other ranks in a
    barrier. Here it is caught where the file is written, and told to all of them.

    Args:
        trainer: While fitting.
        path: Of the file, or of the folder where the strategy writes one.
    """
    strategy = trainer.strategy
    if writes_folders(trainer):
        with writing_to_hidden_folder(strategy, rank=trainer.global_rank) as folder:
            trainer.save_checkpoint(path, weights_only=False)
        return folder.error
    replaced = strategy.checkpoint_io
    safe = SafeCheckpointIO(replaced)
    strategy.checkpoint_io = safe
    try:
        trainer.save_checkpoint(path, weights_only=False)
    finally:
        strategy.checkpoint_io = replaced
    error: str | None = strategy.broadcast(safe.error)
    return error


def remove_safely(trainer: Trainer, path: str) -> None:
    """Remove a checkpoint that is not needed any more; a failure is a warning, on rank 0.

    An error of rank 0, which alone removes, would leave the other ranks waiting for it.
    """
    try:
        if trainer.is_global_zero and os.path.isdir(path):
            remove_folder(Path(path))
        else:
            trainer.strategy.remove_checkpoint(path)
    except OSError as error:
        rank_zero_warn(f"{path} could not be removed ({error}); it is not needed any more.")


class SafeCheckpointIO(CheckpointIO):
    """Gives a file its name when it is complete and on the disk.

    Until then it is a hidden ``.NAME.part`` beside it; one that is left by a killed process is
    replaced by the next. Lightning's own plugin makes three copies in memory first, so its place is
    taken; another one writes the ``.part``, an asynchronous one without its thread.

    Args:
        plugin: The plugin to stand in for.

    Attributes:
        error: Why the last file was not written; None if it was.
    """

    def __init__(self, plugin: CheckpointIO) -> None:
        while isinstance(plugin, AsyncCheckpointIO) and plugin.checkpoint_io is not None:
            plugin = plugin.checkpoint_io
        self.plugin = plugin
        self.error: str | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write a file, or keep the error."""
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        self.error = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(checkpoint, part, storage_options)
            os.replace(part, path)
            flush(path.parent)
        except (OSError, RuntimeError) as error:  # the latter is torch's, for a full disk
            self.error = f"{type(error).__name__}: {error}"
            with suppress(OSError):  # the disk that refused it may be gone altogether
                part.unlink(missing_ok=True)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Leave it to the plugin."""
        checkpoint: dict[str, Any] = self.plugin.load_checkpoint(path, *args, **kwargs)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Leave it to the plugin."""
        self.plugin.remove_checkpoint(path)

    def _write(self, checkpoint: dict[str, Any], part: Path, storage_options: Any | None) -> None:
        if type(self.plugin) is TorchCheckpointIO and storage_options is None:
            with part.open("wb") as file:
                torch.save(checkpoint, file)
        else:
            self.plugin.save_checkpoint(checkpoint, part, storage_options)
        flush(part)
