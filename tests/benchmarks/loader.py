"""What seeding every sample costs, and a jump: ``python -m tests.benchmarks.loader``."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from lightning_recipes import ResumableDataLoader

NUM_SAMPLES = 10**7  # of the data set in which to jump, in batches of one
NEAR, FAR = 10, 9 * 10**6


def seconds(function: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def consume(loader: Iterable[Any]) -> None:
    """Go through a whole epoch."""
    for _ in loader:
        pass


def jump_with_ours(position: int) -> None:
    """Load the batch at ``position`` of a shuffled epoch."""
    loader = ResumableDataLoader(range(NUM_SAMPLES), shuffle=True)  # type: ignore[arg-type]
    loader.load_state_dict({**loader.state_dict(), "batch": position})
    next(iter(loader))


def stateful_state(position: int) -> dict[str, Any]:
    """Return a state as torchdata saves it at ``position``."""
    loader = StatefulDataLoader(range(NUM_SAMPLES), shuffle=True)
    next(iter(loader))
    state: dict[str, Any] = loader.state_dict()
    state["_sampler_iter_yielded"] = state["_num_yielded"] = position
    state["_sampler_iter_state"]["samples_yielded"] = position
    return state


def jump_with_stateful(state: dict[str, Any]) -> None:
    """Do the same with torchdata."""
    loader = StatefulDataLoader(range(NUM_SAMPLES), shuffle=True)
    loader.load_state_dict(state)
    next(iter(loader))


def report(
    title: str, one: Callable[[], Any], two: Callable[[], Any], *, per: int = 1, num_pairs: int = 7
) -> None:
    """Print the medians of pairs taken in turn, and the ratio of each pair."""
    pairs = [(seconds(one), seconds(two)) for _ in range(num_pairs + 1)][1:]
    a, b = (statistics.median(times) * 1e6 / per for times in zip(*pairs, strict=True))
    ratio = statistics.median(first / second for first, second in pairs)
    print(f"{title:52s} {a:12,.1f} us {b:12,.1f} us   ratio {ratio:5.2f}")


def main() -> None:
    """Print the questions."""
    dataset = TensorDataset(torch.randn(8_192, 32))
    ours = ResumableDataLoader(dataset, batch_size=64, shuffle=True)
    plain = DataLoader(dataset, batch_size=64, shuffle=True)
    report("a sample: ours, DataLoader", lambda: consume(ours), lambda: consume(plain), per=8_192)
    title = f"first batch at {FAR:,} and at {NEAR} of {NUM_SAMPLES:,}"
    report(f"{title}: ours", lambda: jump_with_ours(FAR), lambda: jump_with_ours(NEAR))
    far, near = stateful_state(FAR), stateful_state(NEAR)
    report(
        "the same: torchdata's StatefulDataLoader",
        lambda: jump_with_stateful(far),
        lambda: jump_with_stateful(near),
        num_pairs=2,
    )


if __name__ == "__main__":
    main()
