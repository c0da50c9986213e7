"""The checkpoint from which a run goes on as if it had never stopped."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_recipes.callbacks.agreed_timer import AgreedTimer
from lightning_recipes.callbacks.checkpoint_guard import refuse_nonfinite
from lightning_recipes.callbacks.loop_state import (
    before_each_fetch,
    drop_loader_states,
    move_counters_between_batches,
)
from lightning_recipes.callbacks.preemption import Preemption
from lightning_recipes.callbacks.ranks import gather
from lightning_recipes.callbacks.run_state import KEY, RunState
from lightning_recipes.callbacks.safe_write import remove_safely, write_safely
from lightning_recipes.launch.strangers import refuse_strangers
from lightning_recipes.rng import derive_seed

__all__ = ["ResumeCheckpoint"]

_VERSION = 1


class ResumeCheckpoint(Callback):
    """Save the *run* between batches, and restore it exactly.

    ``ModelCheckpoint`` keeps the model, this keeps the run. It saves at the start of a training
    batch, when every consequence of the last one has happened (logging, validation, the end of an
    epoch, schedulers, other callbacks) and nothing of the next, never inside an accumulation
    window, and once more when training ends. A file is an ordinary Lightning checkpoint::

        trainer.fit(module, datamodule=data, ckpt_path="runs/names/resume/step=000001500.ckpt")

    Besides Lightning's own content it holds, of every rank: the random state (python, numpy, torch,
    the accelerator), the positions of the train loaders, the running means of the epoch
    (``self.log(on_epoch=True)`` and the torchmetrics of the module), and the metrics that callbacks
    have seen; and the loop counters put right for that moment. Plain types and tensors, so that it
    loads with ``torch.load(weights_only=True)``. The same state rides in ``ModelCheckpoint``'s
    files, though those are written in the middle of an event: a run resumed from one inside an
    epoch is exact, a validation due included; at the last batch of an epoch a warning names what
    Lightning skips.

    On a fresh run every rank gets its own random stream at the start of training, after the
    weights, which are the same on all ranks. Put it first in the list of callbacks, so that nothing
    draws before the state is restored. It works on any LightningModule, with any train loader that
    has ``state_dict`` and ``load_state_dict``.

    Under DDP the ranks' states are gathered whenever a checkpoint is written, except while an
    exception is handled, where a lone rank would wait for ever. With another number of ranks and
    the same global batch, the same samples follow with the same augmentations; what is drawn in the
    model takes new streams, derived from the seed, the step and the rank.

    A scheduler's signal to *any* rank, or the end of ``max_wall_time``, ends the run in order: all
    ranks agree (the verdict is one batch old, so that nobody waits), save before the next window of
    batches, shut their loader workers down, and ``fit`` raises
    :class:`~lightning_recipes.Preempted`, a ``SystemExit`` with code 75: run the same command again
    to go on. A signal during a validation, the sanity check or an accumulation window waits for its
    end. Before the first batch the file is that of step 0, or the one resumed from; in the last
    steps ``fit`` completes and returns. The same signal again, after five seconds or more, kills
    the process at once. While fitting this takes the place of Lightning's handlers and of yours,
    which come back afterwards; SIGINT stays Lightning's. In a SLURM environment with
    ``auto_requeue``, its ``requeue_signal`` (SIGUSR1) and ``max_wall_time`` also run ``scontrol
    requeue``, SIGTERM does not. ``torchrun`` hands SIGTERM on, grants its workers 30 s, and ends
    with its own code, 1; ``lightning-recipes run`` gives them their time, and ends with 75. Signal
    the launcher or the ranks, not the process group: loader workers die of it, and the run with
    them. With ``ddp_spawn``, signal the ranks.

    What does not come back: what a hook sets that is in no state, since Lightning calls
    ``on_train_epoch_start`` once an epoch (frozen parameters and evaluation modes do come back);
    the masks of ``ModelPruning``; the random states of another loader's workers; the end of a
    shorter loader in ``CombinedLoader(mode="max_size")``; what a loader without a length drew for
    the one batch that Lightning fetches ahead. A run that ``EarlyStopping`` ended goes on when it
    is resumed. A second ``fit`` begins with a new optimizer, as Lightning has it: resume its own
    files. Leave ``LearningRateFinder`` and ``BatchSizeFinder`` out of a resume.

    A file takes its name when it is complete and on the disk, and only then an older one goes. A
    failed write (a full disk, a quota, a folder that cannot be written) is a warning, costs no
    older file, and is tried again when the next one is due; after ``max_failed_writes`` in a row,
    or at the end of training, it is an error, on all ranks. Weights that are not finite are an
    error at once.

    Where the strategy writes a checkpoint as a folder of shards (``ModelParallelStrategy``, and
    ``FSDPStrategy(state_dict_type="sharded")``, which Lightning offers on GPUs only), all ranks
    write into a hidden folder, which takes its name when every one of them has finished; on several
    machines that is a folder that all of them see. Ranks that share one copy of the model share one
    random stream.

    Args:
        dirpath: Where to save; by default ``<default_root_dir>/resume``.
        every_n_steps: Optimizer steps between two files; None for none.
        every_n_minutes: Minutes between two files, on rank 0's clock; None for none.
        keep_last: How many of its own files to keep; None keeps all.
        seed: Of the ranks' streams; by default that of torch's generator (``seed_everything``).
        max_failed_writes: How many failed writes in a row are an error.
        on_new_batch_size: A run that goes on with another *global* batch size is refused, or goes
            on at the ``"nearest"`` batch, the last one that skips no sample.
        signals: Those that end the run in order, among SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU;
            ``()`` for none. One that the platform lacks is left out.
        max_wall_time: The time that the job has, "HH:MM:SS", "DD:HH:MM:SS" or seconds, on rank 0's
            clock and counted from the making of this callback. The run ends in time to save: a
            minute, the longest stretch between two batches (a validation counts) and two of the
            slowest saves before. None for no limit.

    Raises:
        ValueError: An argument is out of range; or, at the start of training, the checkpoint
            belongs to another version or to other data.
        OSError: Files cannot be written, time and again.
        NonFiniteError: The weights are not finite, when a checkpoint is written.
        Preempted: The run was asked to stop, and saved itself.
        MisconfigurationException: Another callback undid the loading of the checkpoint; or torchrun
            started more processes than the trainer has.
    """

    def __init__(
        self,
        dirpath: str | None = None,
        *,
        every_n_steps: int | None = None,
        every_n_minutes: float | None = 10.0,
        keep_last: int | None = 2,
        seed: int | None = None,
        max_failed_writes: int = 3,
        on_new_batch_size: Literal["error", "nearest"] = "error",
        signals: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        max_wall_time: str | float | None = None,
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps must be >= 1 or None, got {every_n_steps}.")
        if every_n_minutes is not None and not every_n_minutes > 0:
            raise ValueError(f"every_n_minutes must be > 0 or None, got {every_n_minutes}.")
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be >= 1, or None to keep all, got {keep_last}.")
        if max_failed_writes < 1:
            raise ValueError(f"max_failed_writes must be >= 1, got {max_failed_writes}.")
        if seed is not None:
            derive_seed(seed)
        if on_new_batch_size not in ("error", "nearest"):
            raise ValueError(
                f"on_new_batch_size must be 'error' or 'nearest', got {on_new_batch_size!r}."
            )
        self.dirpath = dirpath
        self.every_n_steps = every_n_steps
        self.every_n_minutes = every_n_minutes
        self.keep_last = keep_last
        self.seed = seed
        self.on_new_batch_size = on_new_batch_size
        self.max_failed_writes = max_failed_writes
        self.signals = tuple(signals)
        self.max_wall_time = max_wall_time
        self.saved_paths: list[str] = []
        self._path_in_work: list[str] = []
        self._num_failed_writes = 0
        self._timer = None if every_n_minutes is None else AgreedTimer(60 * every_n_minutes)
        self._run = RunState(seed=seed, nearest=on_new_batch_size == "nearest")
        self._preemption = Preemption(signals=signals, max_wall_time=max_wall_time)
        self._last_step = 0
        self._loaded_step: int | None = None
        self._moment = "before training"
        self._is_in_exception = False

    @property
    def last_path(self) -> str | None:
        """The newest file of this run, or None."""
        return self.saved_paths[-1] if self.saved_paths else None

    def folder(self, default_root_dir: str) -> Path:
        """Return where the files are, absolute, so that they are found from any other folder."""
        return Path(self.dirpath or Path(default_root_dir, "resume")).absolute()

    def state_dict(self) -> dict[str, Any]:
        """Return the files that are this run's own."""
        # As they will be once the file is written of which this becomes a part.
        paths = self.saved_paths + self._path_in_work
        return {"version": _VERSION, "saved_paths": paths[-(self.keep_last or 0) :]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on keeping house among the files of the run that is resumed."""
        self.saved_paths = list(state_dict["saved_paths"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse ranks that do not see each other, and warn of a callback that would act first."""
        refuse_strangers(trainer)
        self._is_in_exception, self._moment = False, "before training"
        # Lightning puts these before all others, and they do nothing at the start of a batch.
        finders = (BatchSizeFinder, LearningRateFinder)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        first = next(callback for callback in callbacks if not isinstance(callback, finders))
        if stage == "fit" and first is not self:
            rank_zero_warn(
                "ResumeCheckpoint should be the first callback, and "
                f"{type(first).__name__} stands before it: what that one does at the start of a "
                "batch happens before the state is saved and restored."
            )
        if stage == "fit":
            self._preemption.begin(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See that all ranks go on from the same file: each has looked for it by itself."""
        paths = [None if path is None else str(path) for path in gather(trainer.ckpt_path)]
        if len(set(paths)) > 1:
            raise ValueError(
                f"The ranks go on from different checkpoints: {dict(enumerate(paths))}. They need "
                "a folder that all of them see alike; start again when it has settled."
            )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the run's state to any checkpoint that is written while fitting."""
        if self._is_in_exception or trainer.state.fn != TrainerFn.FITTING:
            return
        if self._moment == "before training":
            # e.g. by LearningRateFinder, which goes back to it after its search
            checkpoint[KEY] = None
            return
        refuse_nonfinite(trainer, pl_module, "none is written.")
        if self._moment == "between batches":
            move_counters_between_batches(checkpoint)
        checkpoint[KEY] = self._run.capture(trainer, pl_module, moment=self._moment)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the run's state until the moments at which it is needed."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if KEY in checkpoint:
            if checkpoint[KEY] is not None:
                self._run.load(checkpoint[KEY])
                self._loaded_step = checkpoint["global_step"]
                drop_loader_states(checkpoint)
        else:
            rank_zero_warn(
                "The checkpoint was written without ResumeCheckpoint: weights and optimizer go on, "
                "random streams and the position in the data start anew."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to the saved position of the data, or give each rank its own random stream."""
        if self._loaded_step not in (None, trainer.global_step):
            raise MisconfigurationException(
                f"The checkpoint of step {self._loaded_step} was loaded, and then the trainer was "
                f"put back to step {trainer.global_step}, as LearningRateFinder and "
                "BatchSizeFinder do: they search again, and Lightning forgets the checkpoint. "
                "Resume without them."
            )
        self._loaded_step = None
        self._moment = "batch end"
        self._last_step = trainer.global_step
        if self._timer is not None:
            self._timer.restart()
        self._run.start(trainer, pl_module)
        self._preemption.start(trainer)
        before_each_fetch(trainer, lambda: self._before_fetch(trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Restore the rest at the first resumed batch; save where it is time."""
        is_resumed = self._run.restore(trainer, pl_module)
        is_window_start = batch_idx % trainer.accumulate_grad_batches == 0
        is_stop = self._preemption.is_agreed and is_window_start
        is_due = not is_resumed and is_window_start and self._is_due(trainer)
        if is_due or (is_stop and not is_resumed and self._run.is_known(trainer)):
            self._moment, start = "between batches", time.monotonic()
            self._save(trainer)
            self._preemption.note_save(start)
            if is_stop:
                self._preemption.stop(trainer, self.last_path)
        elif is_stop and is_resumed:
            # Nothing has happened since the file was written.
            self._preemption.stop(trainer, str(trainer.ckpt_path))
        self._moment = "batch"

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note where the data stands."""
        self._moment = "batch end"
        self._run.loaders.note(trainer)
        self._run.add_waiting_means(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Complete the running means before they are read."""
        self._moment = "epoch end"
        self._run.end_epoch(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Know in which event other callbacks save."""
        self._moment = "validation end"

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the finished run, from which a longer one can go on."""
        self._moment = "training end"
        if trainer.global_step > self._last_step:
            self._save(trainer)
        self._preemption.end(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Gather nothing any more: other ranks may be gone."""
        self._is_in_exception = True
        self._preemption.abandon(trainer)

    def _before_fetch(self, trainer: Trainer) -> None:
        # The clock is asked at the start of the batch; here only whether that question is near.
        self._preemption.exchange(trainer)
        is_time_near = self._timer is not None and self._timer.is_asked_next()
        is_save_near = is_time_near or self._preemption.is_agreed or self._are_steps_due(trainer)
        self._run.before_fetch(trainer, is_save_near=is_save_near)

    def _are_steps_due(self, trainer: Trainer) -> bool:
        num_steps = trainer.global_step - self._last_step
        return self.every_n_steps is not None and num_steps >= self.every_n_steps

    def _is_due(self, trainer: Trainer) -> bool:
        is_new = trainer.global_step > self._last_step
        # The clock is asked in any case, or ranks would lose count of when to ask it.
        is_time = self._timer is not None and self._timer.is_due(trainer)
        is_step = self._are_steps_due(trainer)
        return is_new and (is_time or is_step) and self._run.is_known(trainer)

    def _save(self, trainer: Trainer) -> None:
        path = str(self.folder(trainer.default_root_dir) / f"step={trainer.global_step:09d}.ckpt")
        self._last_step = trainer.global_step
        if self._timer is not None:
            self._timer.restart()
        for logger in trainer.loggers:
            logger.save()  # a resumed run does not log again what came before this moment
        self._path_in_work = [path]
        error = write_safely(trainer, path)
        self._path_in_work = []
        if error is not None:
            self._answer_failure(path, error)
            return
        self._num_failed_writes = 0
        self.saved_paths = [old for old in self.saved_paths if old != path] + [path]
        outdated = self.saved_paths[: -self.keep_last] if self.keep_last else []
        self.saved_paths = self.saved_paths[len(outdated) :]
        for old in outdated:
            remove_safely(trainer, old)

    def _answer_failure(self, path: str, error: str) -> None:
        self._num_failed_writes += 1
        text = (
            f"{path} could not be written ({error}). Newest checkpoint: {self.last_path or 'none'}."
        )
        is_end = self._moment == "training end"
        if is_end or self._num_failed_writes >= self.max_failed_writes:
            raise OSError(
                f"{text} Failed writes in a row: {self._num_failed_writes}, max_failed_writes: "
                f"{self.max_failed_writes}{'; the training has ended' if is_end else ''}."
            )
        if self._num_failed_writes == 1:
            rank_zero_warn(f"{text} The run goes on, and tries again when the next one is due.")
