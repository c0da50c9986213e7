"""What seeding every sample costs, and a jump: ``python -m tests.benchmarks.loader``."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_recipes import ResumableDataLoader

NUM_PAIRS = 7


def seconds(function: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def consume(loader: Iterable[Any]) -> None:
    """Go through a whole epoch."""
    for _ in loader:
        pass


def first_batch(position: int) -> None:
    """Load one batch of 10**9 samples, ``position`` batches into the epoch."""
    loader = ResumableDataLoader(range(10**9), batch_size=256, shuffle=True)  # type: ignore[arg-type]
    loader.load_state_dict({**loader.state_dict(), "batch": position})
    next(iter(loader))


def report(title: str, ours: Callable[[], Any], other: Callable[[], Any], per: int) -> None:
    """Print the medians of pairs taken in turn, and the ratio of each pair."""
    pairs = [(seconds(ours), seconds(other)) for _ in range(NUM_PAIRS + 1)][1:]
    a, b = (statistics.median(times) * 1e6 / per for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / two for one, two in pairs)
    print(f"{title:48s} {a:9.1f} us {b:9.1f} us   ratio {ratio:5.2f}")


def main() -> None:
    """Print the two questions."""
    dataset = TensorDataset(torch.randn(8_192, 32))
    ours = ResumableDataLoader(dataset, batch_size=64, shuffle=True)
    plain = DataLoader(dataset, batch_size=64, shuffle=True)
    print(f"{'':48s} {'ours':>12s} {'other':>12s}")
    report("a sample, ours and DataLoader", lambda: consume(ours), lambda: consume(plain), 8_192)
    report(
        "first batch at 10**6 and at 10 of 10**9 samples",
        lambda: first_batch(10**6),
        lambda: first_batch(10),
        1,
    )


if __name__ == "__main__":
    main()
