"""The checkpoint from which a run goes on as if it had never stopped."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn

from lightning_recipes.callbacks.loop_state import (
    finish_restart,
    get_batches_that_stepped,
    move_counters_between_batches,
)
from lightning_recipes.data.loader import ResumableDataLoader
from lightning_recipes.rng import capture_rng_state, derive_seed, restore_rng_state

__all__ = ["ResumeCheckpoint"]

_VERSION = 1
_KEY = "lightning_recipes.ResumeCheckpoint"


class ResumeCheckpoint(Callback):
    """Save the *run* between batches, and restore it exactly.

    ``ModelCheckpoint`` keeps the model, this keeps the run. It saves at the start of a training
    batch, when every consequence of the last one has happened (logging, validation, the end of an
    epoch, schedulers, other callbacks) and nothing of the next, never inside an accumulation
    window, and once more when training ends. A file is an ordinary Lightning checkpoint::

        trainer.fit(module, datamodule=data, ckpt_path="runs/names/resume/step=000001500.ckpt")

    It holds, besides Lightning's own content, the RNG state of every rank (python, numpy, torch,
    the accelerator), the position of the train loaders (:class:`~lightning_recipes.\
ResumableDataLoader`) and the loop counters put right for that moment; plain types and tensors, so
    that it loads with ``torch.load(weights_only=True)``. The same state rides in the files of
    ``ModelCheckpoint``; resuming from one of those is as exact as the moment of its writing allows.

    On a fresh run every rank gets its own random stream at the start of training, after the
    weights, which are the same on all ranks. Put it first in the list of callbacks, so that nothing
    draws before the state is restored.

    Under DDP the ranks' states are gathered whenever a checkpoint is written, except while an
    exception is handled, where a lone rank would wait for ever. Running epoch means
    (``self.log(on_epoch=True)``) are not part of the state yet: in the epoch of the resume they are
    those of the remaining batches.

    Args:
        dirpath: Where to save; by default ``<default_root_dir>/resume``.
        every_n_steps: Optimizer steps between two files.
        keep_last: How many of its own files to keep; None keeps all.
        seed: Of the ranks' streams; by default that of torch's generator (``seed_everything``).

    Raises:
        ValueError: An argument is out of range; or, at the start of training, the checkpoint
            belongs to another version or to other data.
    """

    def __init__(
        self,
        dirpath: str | None = None,
        *,
        every_n_steps: int = 100,
        keep_last: int | None = 2,
        seed: int | None = None,
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be >= 1, got {every_n_steps}.")
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be >= 1, or None to keep all, got {keep_last}.")
        if seed is not None:
            derive_seed(seed)
        self.dirpath = dirpath
        self.every_n_steps = every_n_steps
        self.keep_last = keep_last
        self.seed = seed
        self.saved_paths: list[str] = []
        self._last_step = 0
        self._is_saving = False
        self._is_in_exception = False
        self._resume_state: dict[str, Any] | None = None

    @property
    def last_path(self) -> str | None:
        """The newest file of this run, or None."""
        return self.saved_paths[-1] if self.saved_paths else None

    def state_dict(self) -> dict[str, Any]:
        """Return the files that are this run's own."""
        return {"version": _VERSION, "saved_paths": list(self.saved_paths)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on keeping house among the files of the run that is resumed."""
        self.saved_paths = list(state_dict["saved_paths"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Warn where another callback would act before the state is restored."""
        self._is_in_exception = False
        first = trainer.callbacks[0]  # type: ignore[attr-defined]
        if stage == "fit" and first is not self:
            rank_zero_warn(
                "ResumeCheckpoint should be the first callback, and "
                f"{type(first).__name__} stands before it: what that one does at the start of a "
                "batch happens before the state is saved and restored."
            )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the run's state to any checkpoint that is written while fitting."""
        if self._is_in_exception or trainer.state.fn != TrainerFn.FITTING:
            return
        loaders = [loader.state_dict() for loader in _train_loaders(trainer)]
        if self._is_saving:
            move_counters_between_batches(checkpoint)
            for state in loaders:
                state["batch"] -= 1  # the batch in hand will be fetched again
        checkpoint[_KEY] = {
            "version": _VERSION,
            "batches_that_stepped": get_batches_that_stepped(trainer),
            "loaders": loaders,
            "rng": _gather(capture_rng_state()),
        }

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the run's state until the moment it is needed."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        state = checkpoint.get(_KEY)
        if state is None:
            rank_zero_warn(
                "The checkpoint was written without ResumeCheckpoint: weights and optimizer go on, "
                "random streams and the position in the data start anew."
            )
        elif state["version"] != _VERSION:
            raise ValueError(
                f"The checkpoint's resume state has version {state['version']}, this version of "
                f"lightning_recipes reads {_VERSION}. Resume with the version that wrote it."
            )
        self._resume_state = state

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to the saved position of the data, or give each rank its own random stream."""
        self._last_step = trainer.global_step
        if self._resume_state is None:
            self._seed_rank(trainer)
            return
        for loader, state in zip(
            _train_loaders(trainer), self._resume_state["loaders"], strict=True
        ):
            loader.load_state_dict(state)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Restore the rest at the first resumed batch; save where it is time."""
        if self._resume_state is not None:
            state, self._resume_state = self._resume_state, None
            finish_restart(trainer, batches_that_stepped=state["batches_that_stepped"])
            self._restore_rng(trainer, state["rng"])
        elif (
            trainer.global_step - self._last_step >= self.every_n_steps
            and batch_idx % trainer.accumulate_grad_batches == 0
        ):
            self._is_saving = True
            try:
                self._save(trainer)
            finally:
                self._is_saving = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the finished run, from which a longer one can go on."""
        if trainer.global_step > self._last_step:
            self._save(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Gather nothing any more: other ranks may be gone."""
        self._is_in_exception = True

    def _save(self, trainer: Trainer) -> None:
        root = Path(self.dirpath or Path(trainer.default_root_dir, "resume"))
        path = str(root / f"step={trainer.global_step:09d}.ckpt")
        self._last_step = trainer.global_step
        self.saved_paths = [old for old in self.saved_paths if old != path] + [path]
        outdated = self.saved_paths[: -self.keep_last] if self.keep_last else []
        self.saved_paths = self.saved_paths[len(outdated) :]
        trainer.save_checkpoint(path, weights_only=False)
        for old in outdated:
            trainer.strategy.remove_checkpoint(old)

    def _restore_rng(self, trainer: Trainer, states: list[dict[str, Any]]) -> None:
        if len(states) == trainer.world_size:
            restore_rng_state(states[trainer.global_rank])
            return
        rank_zero_warn(
            f"The run was saved with {len(states)} ranks and goes on with {trainer.world_size}: "
            "what is drawn in the model (dropout, noise) is not the stream of the stopped run."
        )
        self._seed_rank(trainer)

    def _seed_rank(self, trainer: Trainer) -> None:
        base = torch.initial_seed() if self.seed is None else self.seed
        seed = derive_seed(base, trainer.global_step, trainer.global_rank)
        random.seed(seed)
        np.random.seed(derive_seed(seed) & 0xFFFFFFFF)  # noqa: NPY002 - the one users draw from
        torch.manual_seed(seed)


def _train_loaders(trainer: Trainer) -> list[ResumableDataLoader]:
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    return [loader for loader in loaders if isinstance(loader, ResumableDataLoader)]


def _gather(state: dict[str, Any]) -> list[dict[str, Any]]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [state]
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, state)
    return states
