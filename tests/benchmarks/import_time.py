"""What ``import lightning_recipes`` adds: ``python -m tests.benchmarks.import_time``."""

import statistics
import subprocess
import sys

NUM_RUNS = 7
PROGRAM = """
import time
start = time.perf_counter()
import lightning.pytorch
between = time.perf_counter()
import lightning_recipes
print(between - start, time.perf_counter() - between)
"""


def main() -> None:
    """Time both imports in fresh interpreters, the first of which only warms the disk up."""
    runs = []
    for _ in range(NUM_RUNS + 1):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
        )
        runs.append([float(seconds) for seconds in result.stdout.split()])
    names = ("lightning.pytorch", "lightning_recipes")
    for name, times in zip(names, zip(*runs[1:], strict=True), strict=True):
        median = statistics.median(times)
        print(f"{name:20s} {median:6.3f} s  ({min(times):.3f} to {max(times):.3f})")


if __name__ == "__main__":
    main()
