"""When a run makes room, on all ranks together."""

import logging
import signal
import time
from collections.abc import Sequence

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_recipes.callbacks import loop_state
from lightning_recipes.callbacks.agreed_flag import AgreedFlag
from lightning_recipes.callbacks.preempted import Preempted
from lightning_recipes.callbacks.slurm_requeue import requeue
from lightning_recipes.callbacks.stop_signals import StopSignals
from lightning_recipes.callbacks.wall_time import WallTime

__all__ = ["Preemption"]

log = logging.getLogger(__name__)

_TIME_IS_UP = 1  # and a signal is its number + 1


class Preemption:
    """A signal to any rank, or the end of the granted time on rank 0's clock, agreed by all ranks.

    Args:
        signals: Names of the signals that ask the run to stop.
        max_wall_time: See :class:`~lightning_recipes.callbacks.wall_time.WallTime`; None for none.
    """

    def __init__(self, *, signals: Sequence[str], max_wall_time: str | float | None) -> None:
        self._signals = StopSignals(signals)
        self._wall_time = None if max_wall_time is None else WallTime(max_wall_time)
        self._flag = AgreedFlag()
        self._agreed = 0

    @property
    def is_agreed(self) -> bool:
        """Whether the run stops at the next moment at which it can save; alike on all ranks."""
        return self._agreed != 0

    def begin(self, trainer: Trainer) -> None:
        """Hear signals from now on; before Lightning registers its handlers."""
        self._agreed = 0
        self._signals.forget()
        if not self._signals.take():
            rank_zero_warn(
                "ResumeCheckpoint hears no signals, since Python handles them in the main thread "
                "only and this fit runs in another. Call fit there, or pass signals=()."
            )
            return

        def take_again() -> None:
            self._signals.take()
            # Lightning puts back what it found, at the very end.
            self._signals.leave()

        loop_state.around_signal_handlers(trainer, self._signals.give_back, take_again)

    def start(self, trainer: Trainer) -> None:
        """Begin to agree: a collective, at the start of training."""
        if "SIGTERM" in self._signals.names:
            loop_state.drop_sigterm_broadcast(trainer)
        if self._is_on():
            self._flag.open()
        if self._wall_time is not None:
            self._wall_time.restart_stretch()

    def exchange(self, trainer: Trainer) -> None:
        """Tell the other ranks, and learn what they told; once before each batch is fetched.

        There, since what that batch draws has to be known to be saved. The verdict is of one batch
        earlier, or nobody would wait for anyone.
        """
        if not self._is_on():
            return
        mine = 0 if self._signals.received is None else self._signals.received + 1
        if self._wall_time is not None and self._wall_time.is_up() and trainer.is_global_zero:
            mine = mine or _TIME_IS_UP
        self._agreed = self._agreed or self._flag.exchange(mine)

    def note_save(self, start: float) -> None:
        """Learn how long a save took that began at ``start`` of the monotonic clock."""
        if self._wall_time is not None:
            self._wall_time.note_save(time.monotonic() - start)

    def stop(self, trainer: Trainer, path: str | None) -> None:
        """Leave the training, on all ranks; ``path`` is complete."""
        is_time = self._agreed == _TIME_IS_UP
        reason = "max_wall_time" if is_time else signal.Signals(self._agreed - 1).name
        # What follows, e.g. from a launcher that saw another rank end, is not news.
        self._signals.is_deaf = True
        self._flag.close()
        requeue(trainer, reason)
        environment = loop_state.cluster_environment(trainer)
        is_child = isinstance(environment, LightningEnvironment) and trainer.local_rank > 0
        preempted = Preempted(reason, path, 0) if is_child else Preempted(reason, path)
        rank_zero_info(str(preempted))
        raise preempted

    def end(self, trainer: Trainer) -> None:
        """At the end of training, which is too late to stop."""
        loop_state.restore_sigterm_broadcast(trainer)
        if self._flag.close() or self._agreed or self._signals.received is not None:
            log.warning("A request to stop came in the last steps: the training is complete.")

    def abandon(self, trainer: Trainer) -> None:
        """After an exception: give the handlers back, and talk to no one."""
        loop_state.restore_sigterm_broadcast(trainer)
        self._signals.give_back()
        self._flag.drop()

    def _is_on(self) -> bool:
        # not whether this rank can hear: all ranks have to say the same
        return bool(self._signals.names) or self._wall_time is not None
