"""How long a resumed run waits for its first batch, and what memory that takes.

``python -m tests.benchmarks.resume``: a loader of shuffled numbers, in batches of 32, is made, put
to the batch with a position, which is counted in samples, and asked for it, in the main process.
torch's ``DistributedSampler`` has no position: it is asked for the first batch of an epoch.

Memory is by how much a fresh process grows to its peak, what is imported before not counted. No
such process gets more than 8 GB, and what needs more is told as such. A slope is that of log10 of
the time over log10 of what grows: 0 where they are independent, 1 where they are proportional.
"""

import math
import multiprocessing
import re
import resource
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.jumps import JUMPS, OURS, STARTS, Jump, is_installed
from tests.benchmarks.report import Row, Table, compare, main

LIMIT = 8 * 10**9  # bytes of a process, for the machine's sake
NEAR = 100

Points = Sequence[tuple[int, int]]
"""Pairs of a data set's length and a position."""

warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13


def milliseconds(jump: Jump, length: int, position: int, *, in_total: float = 0) -> float:
    """Return how long a call takes, the median of as many as take more than ``in_total``."""
    times: list[float] = []
    while sum(times) <= in_total:
        start = time.perf_counter()
        jump(length, position)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def cost(jump: Jump, length: int, position: int) -> tuple[float, float] | str:
    """Return time in ms and memory in MB of this process's first call, or why there is none."""
    if not is_installed(jump):
        return "not installed"
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    before = memory("VmRSS")
    # Not getrusage's maximum: the kernel hands that on from the process that started this one.
    Path("/proc/self/clear_refs").write_text("5")
    try:
        duration = milliseconds(jump, length, position)
    except (MemoryError, RuntimeError) as error:  # the latter is torch's for the same
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        return f"needs more than {LIMIT / 1e9:.0f} GB"
    return duration, memory("VmHWM") - before


def memory(name: str) -> float:
    """Return a figure of this process's memory in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1_024 / 1e6


def fresh_cost(jump: Jump, length: int, position: int) -> tuple[float, float] | str:
    """Return the cost in a process of its own."""
    # not forked: of such a process the pages that it only shares are not counted at first
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(cost, jump, length, position).result()


def cost_tables(jumps: dict[str, Jump], length: int, position: int) -> Iterator[Table]:
    """Yield time and memory of each way."""
    costs = {name: fresh_cost(jump, length, position) for name, jump in jumps.items()}
    ours = costs[OURS]
    for k, unit in enumerate(("ms", "MB")):
        rows = [
            Row(name=name, note=figures)
            if isinstance(figures, str)
            else Row(name=name, value=figures[k], ratio=figures[k] / float(ours[k]))
            for name, figures in costs.items()
        ]
        yield Table(title=f"fresh process, {name_of(length, position)}", unit=unit, rows=rows)


def name_of(length: int, position: int) -> str:
    """Return what is asked for in words."""
    at = f"at 10^{math.log10(position):.0f}" if position else "of an epoch"
    return f"first batch {at} of 10^{math.log10(length):.0f}"


def time_table(length: int, position: int, num_rounds: int) -> Table:
    """Return the times of all ways, in this process."""
    start, jump = list(STARTS.items())[-1]
    jumps = JUMPS if position > NEAR else {**JUMPS, f"{start}, at 0": jump}
    ways = {
        name: partial(milliseconds, jump, length, position, in_total=20)
        if is_installed(jump)
        else None
        for name, jump in jumps.items()
    }
    title = name_of(length, position)
    return compare(title, "ms", ways, num_rounds=num_rounds, warm_up=False)


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return by which power of the sizes the times grow."""
    return float(np.polyfit(np.log10(sizes), np.log10(times), 1)[0])


def our_slope(sizes: Sequence[int], points: Points, num_rounds: int) -> Row:
    """Return the mean of slopes that each round takes of ours, and its error."""
    slopes = []
    for turn in range(num_rounds):
        step = 1 if turn % 2 else -1
        times = [milliseconds(JUMPS[OURS], *point, in_total=5) for point in points[::step]]
        slopes.append(slope(sizes[::step], times))
    error = statistics.stdev(slopes) / math.sqrt(num_rounds)
    name = f"{OURS}, to 10^{math.log10(sizes[-1]):.0f}"
    return Row(name=name, value=statistics.mean(slopes), note=f"standard error {error:.4f}")


def slope_table(
    title: str, sizes: Sequence[int], points: Points, taken: Sequence[Table], num_rounds: int
) -> Table:
    """Return all slopes over sizes, those of the others from times taken at the first of them."""
    rows = [our_slope(sizes, points, num_rounds)]
    first = sizes[: len(taken)]
    # not strict: a way without a position is only in the first
    for same in list(zip(*(table.rows for table in taken), strict=False))[1:]:
        times = [row.value for row in same if row.value is not None]
        name = f"{same[0].name}, to 10^{math.log10(first[-1]):.0f}"
        rows.append(Row(name=name, value=slope(first, times) if times else None, note=same[0].note))
    return Table(title=title, unit="slope", rows=rows)


def tables(quick: bool) -> Iterator[Table]:
    """Take the figures."""
    torch.set_num_threads(1)
    huge, large = (10**7, 10**6) if quick else (10**8, 10**7)
    num_rounds, num_slopes = (2, 20) if quick else (3, 100)
    yield from cost_tables(JUMPS, huge, huge // 10)
    if not quick:
        yield from cost_tables(STARTS, huge, 0)
    for jump in filter(is_installed, (*JUMPS.values(), *STARTS.values())):
        jump(NEAR, 0)  # what happens once only, such as an import
    by_length = [(10**k, NEAR) for k in range(4, 9)]
    by_position = [(10**8, 10**k) for k in range(2, 8)]
    taken = {}
    for point in [*by_length, *((large, position) for _, position in by_position)]:
        if point[1] < point[0] <= large and point not in taken:
            taken[point] = time_table(*point, num_rounds)
            yield taken[point]
    sizes = [length for length, _ in by_length]
    others = [table for (_, position), table in taken.items() if position == NEAR]
    yield slope_table("growth with the length, at 100", sizes, by_length, others, num_slopes)
    sizes = [position for _, position in by_position]
    others = [table for (length, _), table in taken.items() if length == large]
    yield slope_table("growth with the position", sizes, by_position, others, num_slopes)


if __name__ == "__main__":
    main(tables, __doc__)
