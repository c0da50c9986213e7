"""The frame of the benchmarks; the figures themselves are no matter of a test."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.report import Row, Table, compare, main, short
from tests.commands import ROOT


def recorder(calls: list[str], name: str, figures: list[float]) -> Callable[[], float]:
    remaining = iter(figures)

    def way() -> float:
        calls.append(name)
        return next(remaining)

    return way


def test_ways_take_turns_and_ratios_are_those_of_a_round() -> None:
    calls: list[str] = []
    table = compare(
        "question",
        "s",
        {
            "ours": recorder(calls, "ours", [100, 1, 2, 4]),
            "missing": None,
            "theirs": recorder(calls, "theirs", [100, 3, 8, 4]),
        },
        num_rounds=3,
    )
    assert calls == [*["theirs", "ours"], *["ours", "theirs"]] * 2
    assert list(table.rows) == [
        Row(name="ours", value=2, ratio=1, low=0.5, high=2),
        Row(name="missing", note="not installed"),
        Row(name="theirs", value=4, ratio=3, low=1, high=4),
    ]


def test_a_script_prints_its_tables_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tables(quick: bool) -> Iterator[Table]:
        row = Row(name="ours", value=0.00123, ratio=1.0, low=0.5, high=2.0)
        yield Table(title=f"quick is {quick}", unit="s", rows=[row, Row(name="peer", note="gone")])

    path = tmp_path / "figures.json"
    main(tables, "What it asks.", ["--quick", "--json", str(path)])
    title, ours, peer = capsys.readouterr().out.strip().split("\n")
    assert title.split() == ["quick", "is", "True", "s", "ratio", "spread"]
    assert ours.split() == ["ours", "0.00123", "1.00", "0.50", "to", "2.00"]
    assert peer.split() == ["peer", "-", "gone"]
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["quick"] is True
    assert report["packages"]["torch"]
    assert report["tables"][0]["rows"][0]["value"] == 0.00123


def test_readme_quotes_what_the_record_holds() -> None:
    readme = (ROOT / "README.md").read_text()
    record = json.loads((ROOT / "docs/benchmarks.json").read_text())
    assert not record["quick"]
    tables = [table for tables in record["tables"].values() for table in tables]
    rows = [(table["unit"].split()[0], row) for table in tables for row in table["rows"]]
    ratios = {
        f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        for _, row in rows
        if row["low"] is not None
    }
    quoted = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", readme)
    assert len(quoted) > 10
    assert not set(quoted) - ratios

    values = {(short(row["value"]), unit) for unit, row in rows if row["value"] is not None}
    (table,) = re.findall(r"^\| question \| ours \|.*?\n\n", readme, re.DOTALL | re.MULTILINE)
    quoted = re.findall(r"([\d.,]+) (us|ms|KiB|MB|%)", table)
    assert len(quoted) > 8
    # "1 ms" names the items of one table
    assert not set(quoted) - values - {("1", "ms")}
