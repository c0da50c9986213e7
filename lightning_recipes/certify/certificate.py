"""What was tried, compared and found, as a document."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from lightning_recipes.certify.comparison import Difference, first

__all__ = ["Certificate", "Point"]

_VERSION = 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run that was killed and resumed, compared with the one that was not.

    Args:
        killed_in_step: The optimizer step, from 1, in which it was killed.
        checkpoint: From which file it was resumed, below its root; None where there was none, so
            that it began anew.
        resumed_after_step: How many steps that file had behind it.
        num_batches: How many batches of rank 0 were compared.
        num_rows: How many logged rows were compared.
        before_kill: The first difference *before* the kill: the run does not even repeat itself.
        differences: Per quantity the first difference after the resume, or None.
        failure: The last lines of the resumed run's output if it failed.
    """

    killed_in_step: int
    checkpoint: str | None
    resumed_after_step: int
    num_batches: int
    num_rows: int
    before_kill: Difference | None
    differences: Mapping[str, Difference | None]
    failure: str | None = None

    @property
    def is_identical(self) -> bool:
        """Whether nothing differs."""
        return self.first_difference is None and self.failure is None

    @property
    def first_difference(self) -> Difference | None:
        """The first difference of all quantities; one before the kill comes first."""
        return self.before_kill or first(list(self.differences.values()))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The result of ``lightning-recipes certify``.

    Args:
        versions: Of Python and of the packages that matter.
        options: The options of the certificate and the arguments of the run.
        run: Facts of the uninterrupted run, as its ``start`` record tells them.
        points: One for each kill.
    """

    versions: Mapping[str, str]
    options: Mapping[str, Any]
    run: Mapping[str, Any]
    points: Sequence[Point]

    @property
    def is_identical(self) -> bool:
        """Whether no point differs."""
        return all(point.is_identical for point in self.points)

    @property
    def worst(self) -> Point | None:
        """The point to look at first: a failed one, or that with the first difference."""
        differing = [point for point in self.points if not point.is_identical]
        return min(differing, key=_urgency, default=None)

    @property
    def advice(self) -> str:
        """What to do about the first difference; empty where there is none."""
        point = self.worst
        if point is None:
            return ""
        if point.before_kill is not None:
            return (
                "The run does not repeat itself even without a kill. Set seed_everything, and "
                "trainer.deterministic on an accelerator; tell --ignore the names of logged times."
            )
        cures = []
        if not self.run["has_resume_checkpoint"]:
            cures.append(
                "put lightning_recipes.ResumeCheckpoint first in trainer.callbacks, which saves "
                "the run between batches with the random state of every rank"
            )
        if not self.run["has_positions"]:
            cures.append(
                f"give the train loader ({', '.join(self.run['loaders'])}) a position: "
                "lightning_recipes.resumable(loader)"
            )
        if cures:
            return f"The cure: {'; and '.join(cures)}."
        if point.failure is not None:
            return "The end of its output says why."
        return (
            "ResumeCheckpoint is there and every train loader has a position. Look for state that "
            "no checkpoint holds: a generator of your own, a counter, a cache, in the module, the "
            "data set or a callback. Give it to state_dict() of its owner."
        )

    def to_json(self) -> str:
        """Return the document: strict JSON, with a version and a verdict."""
        first_difference = self.worst and self.worst.first_difference
        content = {
            "version": _VERSION,
            "verdict": "identical" if self.is_identical else "different",
            "versions": self.versions,
            "options": self.options,
            "run": self.run,
            "points": [asdict(point) for point in self.points],
            "first_difference": first_difference and asdict(first_difference),
            "advice": self.advice or None,
        }
        return json.dumps(_strict(content), indent=2, allow_nan=False)


def _urgency(point: Point) -> tuple[bool, float]:
    difference = point.first_difference
    return point.failure is None, difference.step if difference else point.killed_in_step


def _strict(value: Any) -> Any:
    """JSON has neither NaN nor infinities; here they are strings."""
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return repr(value)
    return value
