"""What ``import lightning_recipes`` adds: ``python -m tests.benchmarks.import_time``."""

import statistics
import subprocess
import sys
import time

NUM_PAIRS = 7


def seconds(module: str) -> float:
    """Return how long a fresh interpreter takes to import ``module``."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Time pairs of imports in turn, so that a drift of the machine's speed hits both."""
    names = ("lightning.pytorch", "lightning_recipes")
    pairs = [[seconds(name) for name in names] for _ in range(NUM_PAIRS + 1)][1:]
    for name, times in zip(names, zip(*pairs, strict=True), strict=True):
        print(f"{name:20s} {statistics.median(times):6.2f} s")
    added = [ours - theirs for theirs, ours in pairs]
    print(
        f"{'added':20s} {statistics.median(added):6.2f} s  ({min(added):.2f} to {max(added):.2f})"
    )


if __name__ == "__main__":
    main()
