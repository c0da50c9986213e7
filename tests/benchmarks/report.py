"""How figures are taken and told: ways in turn, medians, the ratio to ours and its spread."""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "Table", "compare", "main", "short", "versions"]

PACKAGES = (
    *("torch", "lightning", "torchmetrics", "numpy"),
    *("transformers", "accelerate", "torchdata", "mosaicml"),
)

Way = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way and its figure.

    Args:
        name: Of the way, with what it stands for.
        value: The median of the rounds; None where it could not be taken, and ``note`` says why.
        ratio: To ours: the median of the ratios of the rounds; None where a ratio says nothing.
        low: The lowest of those ratios; of ours, over its own median.
        high: The highest.
        note: What else a reader has to know.
    """

    name: str
    value: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The answer to one question.

    Args:
        title: The question.
        unit: Of the values, e.g. ``"us a step"``; ``"samples/s"`` is the one where more is better.
        rows: Ours first.
    """

    title: str
    unit: str
    rows: Sequence[Row]

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield f"{self.title:52.52} {self.unit:>14} {'ratio':>7} {'spread':>15}"
        for row in self.rows:
            value = "-" if row.value is None else short(row.value)
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            spread = "" if row.low is None else f"{row.low:.2f} to {row.high:.2f}"
            yield f"  {row.name:50.50} {value:>14} {ratio:>7} {spread:>15}  {row.note}".rstrip()


def compare(
    title: str, unit: str, ways: Mapping[str, Way | None], *, num_rounds: int, warm_up: bool = True
) -> Table:
    """Let all ways take turns, and return their table.

    Every round asks each way once, forwards and backwards by turns, so that a machine that gets
    slower or faster favours nobody. Ratios are taken within a round; those of ours are to its
    median, and show how much the machine swings.

    Args:
        title: The question.
        unit: Of the figures.
        ways: Each returns one figure; ours first. None stands for a package that is not installed.
        num_rounds: How many figures of each count.
        warm_up: Ask everyone once before, without counting it.
    """
    here = {name: way for name, way in ways.items() if way is not None}
    figures: dict[str, list[float]] = {name: [] for name in here}
    for turn in range(num_rounds + warm_up):
        for name in list(here)[:: 1 if turn % 2 else -1]:
            figures[name].append(here[name]())
    if warm_up:
        figures = {name: values[1:] for name, values in figures.items()}
    ours, *_ = here
    rows = []
    for name in ways:
        if name not in here:
            rows.append(Row(name=name, note="not installed"))
            continue
        median = statistics.median(figures[name])
        bases = [median] * num_rounds if name == ours else figures[ours]
        ratios = [a / b for a, b in zip(figures[name], bases, strict=True)]
        ratio = statistics.median(ratios)
        rows.append(Row(name=name, value=median, ratio=ratio, low=min(ratios), high=max(ratios)))
    return Table(title=title, unit=unit, rows=rows)


def main(
    tables: Callable[[bool], Iterator[Table]], doc: str | None, argv: Sequence[str] | None = None
) -> None:
    """Print the tables of one script as they come; with ``--json FILE`` write them, too.

    Args:
        tables: Given ``quick``, takes the figures.
        doc: What ``--help`` says.
        argv: Arguments; those of the process by default.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(argv)
    done = []
    for table in tables(options.quick):
        print("\n".join(table.lines()), end="\n\n", flush=True)
        done.append(asdict(table))
    if options.json is not None:
        report = {"quick": options.quick, **versions(), "tables": done}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def versions() -> dict[str, Any]:
    """Return what the figures were taken with; None for a package that is not installed."""

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cpus": os.cpu_count(),
        "packages": {package: version(package) for package in PACKAGES},
    }


def short(value: float) -> str:
    """Return a figure with three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
