"""A timer that all ranks agree on, without asking each other at every step."""

import time

from lightning.pytorch import Trainer

__all__ = ["AgreedTimer"]


class AgreedTimer:
    """Says, to all ranks at the same step, that an interval has passed on rank 0's clock.

    Every question would be a collective, and on an accelerator a wait for the device. So rank 0
    also announces the number of steps after which to ask again: half of those that fit into the
    rest of the interval at the present pace. That makes a handful of questions per interval.

    Args:
        interval_s: Seconds between two times that it is due.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.restart()

    def restart(self) -> None:
        """Begin a new interval."""
        self._start = time.monotonic()
        self._steps = 0
        self._ask_at = 1

    def is_asked_next(self) -> bool:
        """Return whether the next question is one for the clock, without which nothing is due."""
        return self._steps + 1 >= self._ask_at

    def is_due(self, trainer: Trainer) -> bool:
        """Return whether the interval has passed; called on every rank at the same steps."""
        self._steps += 1
        if self._steps < self._ask_at:
            return False
        elapsed_s = time.monotonic() - self._start
        steps_left = (self.interval_s - elapsed_s) * self._steps / max(elapsed_s, 1e-9)
        answer = (elapsed_s >= self.interval_s, self._steps + max(1, int(steps_left / 2)))
        is_due, self._ask_at = trainer.strategy.broadcast(answer)
        return is_due
