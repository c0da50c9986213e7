"""The first differences between two recorded runs, and where to kill one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, final

__all__ = ["QUANTITIES", "Difference", "common_start", "compare", "default_points", "first"]

# In the order of cause and effect within a step.
QUANTITIES = ("batches", "rng", "learning rate", "weights", "optimizer", "rows", "end")

Record = Mapping[str, Any]
_FIELDS = {
    "rng": (("batch",), "rng"),
    "learning rate": (("batch", "end"), "learning_rates"),
    "weights": (("step", "end"), "weights"),
    "optimizer": (("step", "end"), "optimizer"),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing in which two runs differ.

    Args:
        quantity: One of :data:`QUANTITIES`.
        name: Which of them: a parameter, a generator, a logged name.
        step: The optimizer step, from 1, in or after which it shows.
        epoch: The epoch, from 0.
        rank: The rank.
        expected: The value in the uninterrupted run; None where it has none.
        found: The value in the other run; None where it has none.
    """

    quantity: str
    name: str
    step: int
    epoch: int
    rank: int
    expected: Any
    found: Any

    def __str__(self) -> str:
        where = f"step {self.step} (epoch {self.epoch}, rank {self.rank})"
        values = f"{_shown(self.expected)} uninterrupted, {_shown(self.found)} resumed"
        return f"{where}: {self.quantity}, {self.name}: {values}"


def compare(
    expected: Sequence[Sequence[Record]],
    found: Sequence[Sequence[Record]],
    *,
    after_moment: int = 0,
) -> dict[str, Difference | None]:
    """Return, per quantity, the first difference between two runs, None where there is none.

    Everything that happened after a moment is compared in the order in which it happened, and both
    ways: what only one of the runs has is a difference. Rows that were logged by the very event in
    which a checkpoint was written count as logged before it.

    Args:
        expected: The records of the uninterrupted run, one sequence per rank.
        found: Those of the other run.
        after_moment: The ``moment`` from which the other run went on.

    Raises:
        ValueError: The runs do not have the same ranks.
    """
    if len(expected) != len(found):
        raise ValueError(f"A run of {len(expected)} ranks and one of {len(found)} do not compare.")
    differences: list[Difference] = []
    for rank, runs in enumerate(zip(expected, found, strict=True)):
        one, two = ([r for r in run if r["moment"] > after_moment] for run in runs)
        for quantity in QUANTITIES:
            differences.extend(_first_of(quantity, rank, one, two))
    by_quantity = {name: [d for d in differences if d.quantity == name] for name in QUANTITIES}
    return {name: first(found_here) for name, found_here in by_quantity.items()}


def first(differences: Sequence[Difference | None]) -> Difference | None:
    """Return the one that shows first; in the same step, the one that is the cause."""
    there = [difference for difference in differences if difference is not None]
    return min(there, key=lambda d: (d.step, QUANTITIES.index(d.quantity), d.rank), default=None)


def common_start(
    one: Sequence[Sequence[Record]], two: Sequence[Sequence[Record]]
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return both runs up to where the shorter one stops, rank by rank."""
    lengths = [min(len(a), len(b)) for a, b in zip(one, two, strict=True)]
    pairs = zip(one, two, lengths, strict=True)
    starts = [(a[:length], b[:length]) for a, b, length in pairs]
    return [start[0] for start in starts], [start[1] for start in starts]


def default_points(records: Sequence[Record]) -> list[int]:
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


def _first_of(
    quantity: str, rank: int, one: Sequence[Record], two: Sequence[Record]
) -> Iterator[Difference]:
    if quantity == "batches":
        mismatches = _batches(_of_kind(one, "batch"), _of_kind(two, "batch"))
    elif quantity == "rows":
        kinds = ("row", "validation")
        mismatches = _rows(_of_kind(one, *kinds), _of_kind(two, *kinds))
    elif quantity == "end":
        mismatches = _ends(one, two)
    else:
        kinds, field = _FIELDS[quantity]
        # Of batches that only one run has, the batches tell.
        pairs = zip(_of_kind(one, *kinds), _of_kind(two, *kinds), strict=False)
        mismatches = ((a, *m) for a, b in pairs for m in _mapping(a[field], b[field]))
    for at, name, expected, found in mismatches:
        where = {"step": at["step"], "epoch": at["epoch"], "rank": rank}
        yield Difference(quantity=quantity, name=name, expected=expected, found=found, **where)
        return


_Mismatches = Iterator[tuple[Record, str, Any, Any]]


def _batches(one: Sequence[Record], two: Sequence[Record]) -> _Mismatches:
    for a, b in zip_longest(one, two):
        if a is None or b is None:
            places = [None if r is None else f"batch {r['batch_idx']}" for r in (a, b)]
            yield (a or b), "missing batch" if b is None else "extra batch", places[0], places[1]
            return
        if a["ids"] is not None and a["ids"] != b["ids"]:
            yield a, "sample ids", a["ids"], b["ids"]
        if a["batch"] != b["batch"]:
            yield a, "digest of the batch", a["batch"], b["batch"]
        for field in ("batch_idx", "epoch", "step"):
            if a[field] != b[field]:
                yield a, field, a[field], b[field]


def _rows(one: Sequence[Record], two: Sequence[Record]) -> _Mismatches:
    for i, (a, b) in enumerate(zip_longest(one, two)):
        if a is not None and b is not None and _row_key(a) == _row_key(b):
            for name, expected, found in _mapping(a.get("values", {}), b.get("values", {})):
                yield a, f"{name} in {_row_name(a)}", expected, found
        elif b is None or (a is not None and _row_key(a) not in map(_row_key, two[i:])):
            yield a, f"missing {_row_name(a)}", a.get("values", "done"), None
            return
        else:
            yield b, f"extra {_row_name(b)}", None, b.get("values", "done")
            return


def _ends(one: Sequence[Record], two: Sequence[Record]) -> _Mismatches:
    (a,), (b,) = _of_kind(one, "end")[-1:] or [None], _of_kind(two, "end")[-1:] or [None]
    if a is None or b is None:
        if a is not b:
            yield (a or b), "the end of training", a and "reached", b and "reached"
        return
    for field in ("global_step", "epoch"):
        if a[field] != b[field]:
            yield a, field, a[field], b[field]


def _mapping(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in [*one, *(name for name in two if name not in one)]:
        expected, found = one.get(name), two.get(name)
        both_nan = expected != expected and found != found
        if expected != found and not both_nan:
            yield name, expected, found


def _row_key(row: Record) -> tuple[Any, ...]:
    return row["kind"], row["step"], row.get("logged_step"), tuple(sorted(row.get("values", ())))


def _row_name(row: Record) -> str:
    if row["kind"] == "validation":
        return "validation"
    return f"row of step {row['logged_step']} with {', '.join(row['values'])}"


def _of_kind(records: Sequence[Record], *kinds: str) -> list[Any]:
    return [record for record in records if record["kind"] in kinds]


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
