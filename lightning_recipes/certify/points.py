"""Where to kill a run."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["default_points"]


def default_points(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the steps in which to kill a run: inside, at the border of, and after an epoch.

    They are a step in the middle of the first epoch, the first step of the second, and one in the
    middle of that; fewer where the run is shorter.

    Args:
        records: The records of rank 0 of an uninterrupted run.
    """
    by_epoch: dict[int, list[int]] = {}
    for record in records:
        if record["kind"] == "batch":
            by_epoch.setdefault(record["epoch"], []).append(record["step"])
    epochs = [sorted(set(steps)) for steps in by_epoch.values()]
    if not epochs:
        return []
    points = [epochs[0][len(epochs[0]) // 2]]
    if len(epochs) > 1:
        points += [epochs[1][0], epochs[1][len(epochs[1]) // 2]]
    return sorted(set(points))
