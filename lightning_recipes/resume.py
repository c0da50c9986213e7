"""From which checkpoint a run goes on: the habit that makes the same command its own recovery."""

import os
from collections.abc import Iterable
from pathlib import Path

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.checkpoints import (
    BrokenCheckpoint,
    judged_checkpoints,
    read_checkpoint,
    read_run,
    verify,
)

__all__ = ["choose_checkpoint", "resume_folder", "resume_path"]


def resume_path(
    trainer: Trainer, resume: str = "auto", *, module: LightningModule | None = None
) -> str | None:
    """Return what to give ``fit`` as ``ckpt_path``, so that a script recovers by being run again.

    ::

        trainer.fit(module, data, ckpt_path=resume_path(trainer, module=module))

    Says in one line which checkpoint it is and why. Every rank looks for itself;
    :class:`~lightning_recipes.ResumeCheckpoint` refuses to begin if they found different ones.

    Args:
        trainer: With a ResumeCheckpoint among its callbacks, whose folder is looked through.
        resume: ``"auto"`` for the newest intact checkpoint of the folder, and a fresh start (None)
            if there is none; or the path of a checkpoint, which has to be intact.
        module: If given, a checkpoint of another model is refused, too.

    Raises:
        MisconfigurationException: There is no ResumeCheckpoint.
        BrokenCheckpoint: The checkpoint at the path is not intact, or of another model.
        FileNotFoundError: There is nothing at the path.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    folder = resume_folder(callbacks, trainer.default_root_dir)
    return choose_checkpoint(folder, resume, module=module)


def resume_folder(callbacks: Iterable[Callback], default_root_dir: str) -> Path:
    """Return where the run saves itself.

    Raises:
        MisconfigurationException: It does not: no ResumeCheckpoint is among the callbacks.
    """
    for callback in callbacks:
        if isinstance(callback, ResumeCheckpoint):
            return callback.folder(default_root_dir)
    raise MisconfigurationException(
        'resume="auto" looks for the files of a ResumeCheckpoint, and none is among the callbacks. '
        "Add lightning_recipes.ResumeCheckpoint."
    )


def choose_checkpoint(
    folder: Path, resume: str = "auto", *, module: LightningModule | None = None
) -> str | None:
    """Return the checkpoint to go on from, or None for a fresh start; see :func:`resume_path`."""
    if resume != "auto":
        verify(resume)
        if (reason := _why_other(resume, module)) is not None:
            raise BrokenCheckpoint(Path(resume), reason)
        return resume
    refused: list[str] = []
    for path, broken in judged_checkpoints(folder):
        reason = _why_other(path, module) if broken is None else broken
        if reason is None:
            newer = f" Refused newer ones: {'; '.join(refused)}." if refused else ""
            rank_zero_info(f"Resuming from {path}, the newest intact checkpoint.{newer}")
            return str(path)
        refused.append(f"{path.name}: {reason}")
    if refused:
        rank_zero_warn(
            f"A fresh start: none of the checkpoints in {folder} can be resumed from. "
            f"{'; '.join(refused)}."
        )
    else:
        rank_zero_info(f"A fresh start: there is no checkpoint in {folder} yet.")
    return None


def _why_other(path: str | os.PathLike[str], module: LightningModule | None) -> str | None:
    """Return how the weights of an intact checkpoint differ from a module's in name or shape."""
    if module is None:
        return None
    path = Path(path)
    checkpoint = read_checkpoint(path) if path.is_dir() else read_run(path)
    theirs = {name: tuple(value.shape) for name, value in checkpoint["state_dict"].items()}
    ours = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    if not ours or ours == theirs:  # none yet: they are made in configure_model
        return None
    name = next(n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n))
    return (
        f"of another model: {name!r} has shape {theirs.get(name, 'none')} in the checkpoint and "
        f"{ours.get(name, 'none')} in {type(module).__name__}"
    )
