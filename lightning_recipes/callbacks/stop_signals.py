"""Signals that ask a run to stop, heard without acting on them."""

import os
import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

__all__ = ["StopSignals"]

# What schedulers send. SIGINT is Lightning's; SIGKILL and SIGSTOP reach no process.
_CHOICES = ("SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")
# A launcher and its workers may both get a signal, which the workers then hear twice.
_ECHO_S = 5.0


class StopSignals:
    """Notes the first signal; the same one again stops the process at once.

    "Again" means five seconds later or more, and "at once" is the signal's default action.

    Args:
        names: Of the signals, among SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU. One that the
            platform lacks is left out.

    Raises:
        ValueError: A name is not one of these.
    """

    def __init__(self, names: Sequence[str]) -> None:
        wrong = [names] if isinstance(names, str) else [n for n in names if n not in _CHOICES]
        if wrong:
            raise ValueError(
                f"signals must be a list of names among {', '.join(_CHOICES)}, or empty for none, "
                f"got {wrong[0]!r}. SIGINT stays Lightning's; SIGKILL and SIGSTOP cannot be heard."
            )
        self.names = tuple(names)
        self.received: int | None = None
        self.is_deaf = False
        self._pid = 0
        self._heard_at: dict[int, float] = {}
        self._found: dict[int, Any] = {}

    def take(self) -> bool:
        """Listen from now on; return False where Python does not allow it: another thread."""
        self._pid = os.getpid()
        numbers = [getattr(signal, name) for name in self.names if hasattr(signal, name)]
        try:
            for number in numbers:
                self._found[number] = signal.signal(number, self._hear)
        except ValueError:
            return False
        return True

    def give_back(self) -> None:
        """Put back the handlers that :meth:`take` found, if they are still to be put back."""
        while self._found:
            number, handler = self._found.popitem()
            # None: set from C, and out of Python's reach
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def leave(self) -> None:
        """Leave it to someone else to put back what was there."""
        self._found = {}

    def forget(self) -> None:
        """Begin anew: nothing was received."""
        self.received, self.is_deaf, self._heard_at = None, False, {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # It may interrupt anything: no lock, no collective, no logging.
        if os.getpid() != self._pid:
            # a forked helper inherits this: to be terminated by its parent, deaf to schedulers
            if number == signal.SIGTERM:
                _die_of(number)
            return
        now = time.monotonic()
        if self.received is None:
            self.received = number
        if number not in self._heard_at:
            self._heard_at[number] = now
        elif now - self._heard_at[number] >= _ECHO_S and not self.is_deaf:
            _die_of(number)


def _die_of(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
