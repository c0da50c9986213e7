"""What verifying a checkpoint costs: ``python -m tests.benchmarks.checkpoints [--megabytes N]``.

Against reading the file once, from the disk (dropped from the page cache before, so far as the
system does that) and from memory, where nothing is left but the arithmetic of the checksum.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightning_recipes import verify
from tests.checkpoint_files import save

MEGABYTES_PER_TENSOR = 4


def seconds(function: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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


def report(
    title: str,
    one: Callable[[], Any],
    two: Callable[[], Any],
    *,
    before: Callable[[], Any] = lambda: None,
    num_pairs: int = 5,
) -> None:
    """Print the medians of pairs taken in turn, and the ratio of each pair."""
    pairs = []
    for _ in range(num_pairs + 1):
        before()
        first = seconds(one)
        before()
        pairs.append((first, seconds(two)))
    a, b = (statistics.median(times) for times in zip(*pairs[1:], strict=True))
    ratio = statistics.median(first / second for first, second in pairs[1:])
    print(f"{title:52s} {a:8.3f} s {b:8.3f} s   ratio {ratio:5.2f}")


def main() -> None:
    """Print the questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "big.ckpt")
        numbers = MEGABYTES_PER_TENSOR * 250_000
        weights = {str(i): torch.randn(numbers) for i in range(megabytes // MEGABYTES_PER_TENSOR)}
        save(path, state_dict=weights)
        print(f"{path.stat().st_size / 1e6:,.0f} MB")
        report(
            "from disk: verify, read once",
            lambda: verify(path),
            lambda: read(path),
            before=lambda: forget(path),
        )
        report(
            "from disk: verify(finite=True), read once",
            lambda: verify(path, finite=True),
            lambda: read(path),
            before=lambda: forget(path),
        )
        report("from memory: verify, read once", lambda: verify(path), lambda: read(path))
        report(
            "from memory: verify, torch.load",
            lambda: verify(path),
            lambda: torch.load(path, weights_only=True),
        )


if __name__ == "__main__":
    main()
