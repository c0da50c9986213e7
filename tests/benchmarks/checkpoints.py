"""What ResumeCheckpoint adds to a save and to a load, and what verifying a file costs.

``python -m tests.benchmarks.checkpoints``: whole runs that save at every step, in a temporary
folder, ours and ``trainer.save_checkpoint`` of plain Lightning. Lightning leaves a file to the
system's memory; ours is on the disk before it has its name, so the same with a flush of file and
folder stands beside: what that takes is the disk's.

A verification is told next to reading the file once, from the disk (dropped from the page cache
before, so far as the system does that) and from memory, where only the arithmetic is left.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightning_recipes import verify
from tests.benchmarks.report import Row, Table, compare, main
from tests.benchmarks.saving import (
    STEP,
    PlainCheckpoint,
    TimedResumeCheckpoint,
    fit,
    ms_per_save,
    ms_to_first_batch,
)
from tests.checkpoint_files import save

OURS, PLAIN = "ResumeCheckpoint", "trainer.save_checkpoint"
MEGABYTE = 10**6
MEGABYTES_PER_TENSOR = 4


def saves(title: str, num_bytes: int, num_saves: int, num_rounds: int) -> Table:
    """Return the times of a save, each figure the median of a run."""

    def run(make: Callable[[Path], Any]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return ms_per_save(make(Path(folder)), num_bytes, num_saves)

    return with_difference(
        compare(
            f"a save, {title}",
            "ms",
            {
                OURS: lambda: run(TimedResumeCheckpoint),
                PLAIN: lambda: run(PlainCheckpoint),
                f"{PLAIN}, then flushed": lambda: run(partial(PlainCheckpoint, is_flushed=True)),
            },
            num_rounds=num_rounds,
        )
    )


def files(title: str, num_bytes: int, num_rounds: int) -> Iterator[Table]:
    """Yield the size of a file, and the times of loading it and of going on from it."""
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder, "ours"), Path(folder, "plain")
        fit(num_bytes, STEP, TimedResumeCheckpoint(ours))
        fit(num_bytes, STEP + 1, PlainCheckpoint(plain))
        ours, plain = (path / f"step={STEP:09d}.ckpt" for path in (ours, plain))
        sizes = [path.stat().st_size / 1024 for path in (ours, plain)]
        rows = [
            Row(name=name, value=size, ratio=size / sizes[0])
            for name, size in zip((OURS, PLAIN), sizes, strict=True)
        ]
        yield with_difference(Table(title=f"size of a file, {title}", unit="KiB", rows=rows))
        ways = {
            "verify, then torch.load": lambda: ms(lambda: verified_load(ours)),
            "torch.load": lambda: ms(lambda: load(ours)),
        }
        yield with_difference(compare(f"a load, {title}", "ms", ways, num_rounds=num_rounds))
        ways = {
            "newest_intact, ResumeCheckpoint": lambda: ms_to_first_batch(
                num_bytes, ours, is_ours=True
            ),
            "Lightning": lambda: ms_to_first_batch(num_bytes, plain, is_ours=False),
        }
        title = f"a resume until its first batch, {title}"
        yield with_difference(compare(title, "ms", ways, num_rounds=num_rounds))


def with_difference(table: Table) -> Table:
    """Return a table that says what ours adds to each of the others."""
    values = [row.value or 0 for row in table.rows]
    rows = [
        replace(row, note=f"ours {values[0] - value:+,.4g}")
        for row, value in zip(table.rows[1:], values[1:], strict=True)
    ]
    return replace(table, rows=[table.rows[0], *rows])


def ms(function: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def load(path: Path) -> Any:
    """Load a file as Lightning does."""
    return torch.load(path, weights_only=True)


def verified_load(path: Path) -> Any:
    """Verify a file before."""
    verify(path)
    return load(path)


def read(path: Path) -> None:
    """Read a file once, as ``cat`` does."""
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def forget(path: Path) -> None:
    """Ask the system to drop the file from its page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def verification(megabytes: int, num_rounds: int) -> Iterator[Table]:
    """Yield the times of verifying and reading a file, from the disk and from memory."""
    ways: dict[str, Callable[[Path], Any]] = {
        "verify": verify,
        "verify(finite=True)": partial(verify, finite=True),
        "reading once": read,
        "torch.load": load,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "big.ckpt")
        shape = MEGABYTES_PER_TENSOR * MEGABYTE // 4
        weights = {str(i): torch.randn(shape) for i in range(megabytes // MEGABYTES_PER_TENSOR)}
        save(path, state_dict=weights)

        def run(way: Callable[[Path], Any], is_forgotten: bool) -> float:
            if is_forgotten:
                forget(path)
            return ms(lambda: way(path))

        for place in ("disk", "memory"):
            yield compare(
                f"{megabytes} MB from {place}",
                "ms",
                {name: partial(run, way, place == "disk") for name, way in ways.items()},
                num_rounds=num_rounds,
            )


def tables(quick: bool) -> Iterator[Table]:
    """Take the figures."""
    torch.set_num_threads(1)
    large, num_rounds = (10, 3) if quick else (100, 7)
    yield from files("a model of 64 kB", 64_000, num_rounds)
    yield saves("a model of 64 kB", 64_000, 10 if quick else 40, num_rounds)
    yield from files(f"a model of {large} MB", large * MEGABYTE, num_rounds)
    yield saves(f"a model of {large} MB", large * MEGABYTE, 3, 3)
    yield from verification(40 if quick else 300, num_rounds)


if __name__ == "__main__":
    main(tables, __doc__)
