"""Telling where a rank stands when nothing happens any more."""

import faulthandler
import sys
import threading
import time
from typing import TextIO

__all__ = ["StackWatch"]


class StackWatch:
    """Writes the stacks of all threads to stderr when too long has passed since the last beat.

    Not ``faulthandler.dump_traceback_later``, of which a process has one, perhaps in use, and which
    does not say which rank it was. A beat is the store of a number, so that one a batch costs
    nothing. Written once; the next beat arms it again.

    Args:
        timeout_s: Seconds without a beat.
        title: What to write above the stacks.
    """

    def __init__(self, timeout_s: float, title: str) -> None:
        self.timeout_s = timeout_s
        self.title = title
        self._is_ended = threading.Event()
        self._last_beat = time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="StackWatch")

    def start(self) -> "StackWatch":
        """Begin to count."""
        self.beat()
        self._thread.start()
        return self

    def beat(self) -> None:
        """Say that something has happened."""
        self._last_beat = time.monotonic()

    def end(self) -> None:
        """Watch no longer."""
        self._is_ended.set()

    def _watch(self) -> None:
        told: float | None = None
        while True:
            beat = self._last_beat
            left_s = self.timeout_s - (time.monotonic() - beat)
            if left_s <= 0 and told != beat:
                told = beat
                self._write()
            if self._is_ended.wait(left_s if left_s > 0 else self.timeout_s):
                return

    def _write(self) -> None:
        file = _real_stderr()
        file.write(f"\n{self.title} for {self.timeout_s:g} s. Where it stands:\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)


def _real_stderr() -> TextIO:
    """Return one with a file behind it: in a notebook sys.stderr has none."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        assert sys.__stderr__ is not None
        return sys.__stderr__
    return sys.stderr
