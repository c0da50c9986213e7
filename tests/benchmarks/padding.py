"""How much of the batches is padding: ``python -m tests.benchmarks.padding``.

Batches of any samples, grouped as transformers' ``LengthGroupedSampler`` does it (a shuffled epoch,
each 50 batches of which are sorted by length), and ours. Positions are counted, nothing is timed
but the start of an epoch.
"""

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from lightning_recipes import LengthBuckets
from lightning_recipes.datasets.names import load_names

BATCH_SIZE = 64

Lengths = NDArray[np.int64]
Batches = Iterable[Lengths]


def padding(lengths: Lengths, batches: Batches) -> float:
    """Return which share of the positions of all batches is padding."""
    sizes = [(lengths[batch].sum(), lengths[batch].max() * len(batch)) for batch in batches]
    real, total = np.sum(sizes, axis=0)
    return 1 - float(real) / float(total)


def cut(indices: Lengths, size: int) -> list[Lengths]:
    """Return pieces of ``size``, the last one perhaps smaller."""
    return [indices[i : i + size] for i in range(0, len(indices), size)]


def random_batches(lengths: Lengths) -> Batches:
    """Return batches of any samples."""
    return cut(np.random.default_rng(0).permutation(len(lengths)), BATCH_SIZE)


def grouped_batches(lengths: Lengths) -> Batches:
    """Return batches as transformers groups them."""
    size = min(len(lengths) // (BATCH_SIZE * 4), 50) * BATCH_SIZE
    pieces = cut(np.random.default_rng(0).permutation(len(lengths)), size)
    return cut(np.concatenate([p[np.argsort(-lengths[p])] for p in pieces]), BATCH_SIZE)


def bucket_batches(lengths: Lengths) -> Batches:
    """Return ours, of a fixed size."""
    order = LengthBuckets(lengths).order(batch_size=BATCH_SIZE, world_size=1, shuffle=True)
    return [order.batch(0, k) for k in range(len(order))]


def budget_batches(lengths: Lengths) -> Batches:
    """Return ours, with a budget of as many tokens."""
    budget = max(BATCH_SIZE * int(lengths.mean()), int(lengths.max()))
    buckets = LengthBuckets(lengths, max_tokens=budget)
    order = buckets.order(batch_size=BATCH_SIZE, world_size=1, shuffle=True)
    return [order.batch(0, k) for k in range(len(order))]


WAYS: dict[str, Callable[[Lengths], Batches]] = {
    "any samples": random_batches,
    "as transformers groups": grouped_batches,
    "LengthBuckets": bucket_batches,
    "LengthBuckets(max_tokens)": budget_batches,
}


def main() -> None:
    """Print the table."""
    names = np.array([len(name.encode()) for name in load_names()[0]])
    normal = np.random.default_rng(0).normal(4, 0.8, 10**7)
    log_normal = np.maximum(np.exp(normal), 1).astype(np.int64)
    data = {"names": names, "log-normal, 20,000": log_normal[:20_000]}
    print(f"{'padding of all positions':28}" + "".join(f"{title:>20}" for title in data))
    for way, batches in WAYS.items():
        shares = [padding(lengths, batches(lengths)) for lengths in data.values()]
        print(f"{way:28}" + "".join(f"{share:20.1%}" for share in shares))
    start = time.perf_counter()
    order = LengthBuckets(log_normal).order(batch_size=BATCH_SIZE, world_size=1, shuffle=True)
    built = time.perf_counter()
    order.batch(1, 12_345)
    print(f"10**7 samples: sorted once in {built - start:.2f} s; ", end="")
    print(f"any batch of any epoch in {(time.perf_counter() - built) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
