"""The time that a scheduler grants a job."""

import re
import time

__all__ = ["WallTime"]

_DURATION = re.compile(r"(?:(\d+)[-:])?(\d+):([0-5]\d):([0-5]\d)")
_MINUTE_S = 60.0


class WallTime:
    """Says in time that the time is up: there has to be enough left to save.

    That is a minute, the longest stretch so far between two moments at which it was asked (a
    validation counts), and twice the slowest save.

    Args:
        limit: "HH:MM:SS", "DD:HH:MM:SS", "D-HH:MM:SS", or seconds; counted from now on.

    Raises:
        ValueError: The limit is in another form, or not above zero.
    """

    def __init__(self, limit: str | float) -> None:
        self.limit_s = _seconds(limit)
        self._start = self._asked_at = time.monotonic()
        self._longest_stretch_s = 0.0
        self._slowest_save_s = 0.0

    def restart_stretch(self) -> None:
        """Measure stretches from now on."""
        self._asked_at = time.monotonic()

    def note_save(self, duration_s: float) -> None:
        """Learn how long a save took."""
        self._slowest_save_s = max(self._slowest_save_s, duration_s)

    def is_up(self) -> bool:
        """Return whether it is time to save and stop."""
        now = time.monotonic()
        self._longest_stretch_s = max(self._longest_stretch_s, now - self._asked_at)
        self._asked_at = now
        margin_s = _MINUTE_S + self._longest_stretch_s + 2 * self._slowest_save_s
        return now - self._start + margin_s >= self.limit_s


def _seconds(limit: str | float) -> float:
    total_s = 0.0
    if not isinstance(limit, str):
        total_s = float(limit)
    elif match := _DURATION.fullmatch(limit.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        total_s = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if not total_s > 0:
        raise ValueError(
            'max_wall_time must be "HH:MM:SS", "DD:HH:MM:SS" or seconds, above zero, '
            f"or None for no limit, got {limit!r}."
        )
    return total_s
