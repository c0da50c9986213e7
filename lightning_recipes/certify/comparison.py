"""The first differences between two recorded runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, final

__all__ = ["Difference", "common_start", "compare", "first"]

Record = Mapping[str, Any]
_Mismatch = tuple[Record, str, Any, Any]  # where, what, expected, found
_FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
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
        quantity: One of :attr:`QUANTITIES`, which stand in the order of cause and effect.
        name: Which of them: a parameter, a generator, a logged name.
        step: The optimizer step, from 1, in or after which it shows.
        epoch: The epoch, from 0.
        rank: The rank.
        expected: The value in the uninterrupted run; None where it has none.
        found: The value in the other run; None where it has none.
    """

    QUANTITIES: ClassVar[tuple[str, ...]] = (
        "batches",
        "rng",
        "learning rate",
        "weights",
        "optimizer",
        "rows",
        "end",
    )

    quantity: str
    name: str
    step: int
    epoch: int
    rank: int
    expected: Any
    found: Any

    def __str__(self) -> str:
        where = f"step {self.step} (epoch {self.epoch}, rank {self.rank})"
        values = f"expected {_shown(self.expected)}, found {_shown(self.found)}"
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
        for quantity in Difference.QUANTITIES:
            for at, name, a, b in islice(_mismatches(quantity, one, two), 1):
                where = {"step": at["step"], "epoch": at["epoch"], "rank": rank}
                values = {"expected": a, "found": b}
                differences.append(Difference(quantity=quantity, name=name, **where, **values))
    by_quantity = {
        name: [d for d in differences if d.quantity == name] for name in Difference.QUANTITIES
    }
    return {name: first(found_here) for name, found_here in by_quantity.items()}


def first(differences: Sequence[Difference | None]) -> Difference | None:
    """Return the one that shows first; in the same step, the one that is the cause."""
    there = [difference for difference in differences if difference is not None]
    return min(
        there, key=lambda d: (d.step, Difference.QUANTITIES.index(d.quantity), d.rank), default=None
    )


def common_start(
    one: Sequence[Sequence[Record]], two: Sequence[Sequence[Record]]
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return both runs up to where the shorter one stops, rank by rank."""
    lengths = [min(len(a), len(b)) for a, b in zip(one, two, strict=True)]
    pairs = zip(one, two, lengths, strict=True)
    starts = [(a[:length], b[:length]) for a, b, length in pairs]
    return [start[0] for start in starts], [start[1] for start in starts]


def _mismatches(quantity: str, one: Sequence[Record], two: Sequence[Record]) -> Iterator[_Mismatch]:
    """Yield what differs, in the order in which it happened."""
    if quantity == "batches":
        return _batches(_of_kind(one, "batch"), _of_kind(two, "batch"))
    if quantity == "rows":
        rows = [_of_kind(run, "row", "validation") for run in (one, two)]
        return _rows(*rows)
    if quantity == "end":
        return _ends(_of_kind(one, "end"), _of_kind(two, "end"))
    kinds, field = _FIELDS[quantity]
    # Of batches that only one run has, the batches tell.
    pairs = zip(_of_kind(one, *kinds), _of_kind(two, *kinds), strict=False)
    return ((a, *mismatch) for a, b in pairs for mismatch in _mapping(a[field], b[field]))


def _batches(one: Sequence[Record], two: Sequence[Record]) -> Iterator[_Mismatch]:
    for a, b in zip(one, two, strict=False):
        if a["ids"] is not None and a["ids"] != b["ids"]:
            yield a, "sample ids", a["ids"], b["ids"]
        if a["batch"] != b["batch"]:
            yield a, "digest of the batch", a["batch"], b["batch"]
        for field in ("batch_idx", "epoch", "step"):
            if a[field] != b[field]:
                yield a, field, a[field], b[field]
    for missing in one[len(two) :]:
        yield missing, "missing batch", f"batch {missing['batch_idx']}", None
    for extra in two[len(one) :]:
        yield extra, "extra batch", None, f"batch {extra['batch_idx']}"


def _rows(one: Sequence[Record], two: Sequence[Record]) -> Iterator[_Mismatch]:
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if _row_key(a) != _row_key(b):
            if _row_key(a) in map(_row_key, two[i:]):
                yield b, f"extra {_row_name(b)}", None, _row_values(b)
            else:
                yield a, f"missing {_row_name(a)}", _row_values(a), None
            return  # from here on, rows no longer correspond
        for name, expected, found in _mapping(a.get("values", {}), b.get("values", {})):
            yield a, f"{name} logged under step {a['logged_step']}", expected, found
    for missing in one[len(two) :]:
        yield missing, f"missing {_row_name(missing)}", _row_values(missing), None
    for extra in two[len(one) :]:
        yield extra, f"extra {_row_name(extra)}", None, _row_values(extra)


def _ends(one: Sequence[Record], two: Sequence[Record]) -> Iterator[_Mismatch]:
    for a, b in zip(one, two, strict=False):
        for field in ("global_step", "epoch"):
            if a[field] != b[field]:
                yield a, field, a[field], b[field]
    if one and not two:
        yield one[0], "the end of training", one[0]["global_step"], None
    if two and not one:
        yield two[0], "the end of training", None, two[0]["global_step"]


def _mapping(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in [*one, *(name for name in two if name not in one)]:
        expected, found = one.get(name), two.get(name)
        both_nan = expected != expected and found != found
        if expected != found and not both_nan:
            yield name, expected, found


def _row_key(row: Record) -> tuple[Any, ...]:
    return row["kind"], row["step"], row.get("logged_step"), tuple(sorted(row.get("values", ())))


def _row_values(row: Record) -> Any:
    return row.get("values", "done")


def _row_name(row: Record) -> str:
    if row["kind"] == "validation":
        return "validation"
    return f"row of {', '.join(row['values'])} logged under step {row['logged_step']}"


def _of_kind(records: Sequence[Record], *kinds: str) -> list[Any]:
    return [record for record in records if record["kind"] in kinds]


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
