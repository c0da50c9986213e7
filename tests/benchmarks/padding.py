"""How much of the batches is padding, and what comes before a batch.

``python -m tests.benchmarks.padding``: batches of 64 of any samples, of those that transformers
groups (a shuffled epoch, each 50 batches of which are sorted by length), and ours. Positions are
counted, so these figures are the same everywhere. Then the time that planning takes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_recipes import LengthBuckets
from lightning_recipes.datasets.names import load_names
from tests.benchmarks.report import Row, Table, compare, main

BATCH_SIZE = 64

Lengths = NDArray[np.int64]
Batches = Iterable[Lengths]
Group = Callable[[list[int]], list[int]]


def padding(lengths: Lengths, batches: Batches) -> float:
    """Return how many percent of the positions of all batches are padding."""
    sizes = [(lengths[batch].sum(), lengths[batch].max() * len(batch)) for batch in batches]
    real, total = np.sum(sizes, axis=0)
    return 100 * (1 - float(real) / float(total))


def cut(indices: Lengths) -> list[Lengths]:
    """Return batches, the last one perhaps smaller."""
    return [indices[i : i + BATCH_SIZE] for i in range(0, len(indices), BATCH_SIZE)]


def bucket_batches(lengths: Lengths, *, max_tokens: int | None = None) -> Batches:
    """Return ours."""
    buckets = LengthBuckets(lengths, max_tokens=max_tokens)
    order = buckets.order(batch_size=BATCH_SIZE, world_size=1, shuffle=True)
    return [order.batch(0, k) for k in range(len(order))]


def budget_batches(lengths: Lengths) -> Batches:
    """Return ours with a budget of as many tokens."""
    budget = max(BATCH_SIZE * int(lengths.mean()), int(lengths.max()))
    return bucket_batches(lengths, max_tokens=budget)


def random_batches(lengths: Lengths) -> Batches:
    """Return batches of any samples."""
    return cut(np.random.default_rng(0).permutation(len(lengths)))


def grouping() -> Group | None:
    """Return what makes an epoch in transformers, or None where that is not installed."""
    try:
        from transformers.trainer_pt_utils import get_length_grouped_indices
    except ModuleNotFoundError:
        return None
    group: Group = partial(get_length_grouped_indices, batch_size=BATCH_SIZE)
    return group


def shares(lengths: Lengths) -> Iterator[Row]:
    """Yield the padding of each way."""
    ours = padding(lengths, bucket_batches(lengths))
    group = grouping()
    torch.manual_seed(0)  # which transformers draws from
    yield Row(name="LengthBuckets", value=ours, ratio=1.0)
    for name, batches in {
        "LengthBuckets(max_tokens=...)": budget_batches(lengths),
        "any samples": random_batches(lengths),
        "as transformers groups them": group and cut(np.array(group(lengths.tolist()))),
    }.items():
        if batches is None:
            yield Row(name=name, note="not installed")
        else:
            value = padding(lengths, batches)
            yield Row(name=name, value=value, ratio=value / ours)


def milliseconds(function: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def planning(lengths: Lengths, num_rounds: int) -> Table:
    """Return the time before a batch: to sort, to find one, to make an epoch in transformers."""
    order = LengthBuckets(lengths).order(batch_size=BATCH_SIZE, world_size=1, shuffle=True)
    batches = np.random.default_rng(0).integers(len(order), size=100)
    group, as_list = grouping(), lengths.tolist()

    def sort() -> None:
        LengthBuckets(lengths).order(batch_size=BATCH_SIZE, world_size=1, shuffle=True)

    def find() -> None:
        for epoch, k in enumerate(batches.tolist()):
            order.batch(epoch, k)

    return compare(
        f"{len(lengths):,} lengths: the time of",
        "ms",
        {
            "LengthBuckets: any batch of any epoch": lambda: milliseconds(find) / len(batches),
            "LengthBuckets: sorting, once": lambda: milliseconds(sort),
            "transformers: grouping, every epoch": group
            and partial(milliseconds, partial(group, as_list)),
        },
        num_rounds=num_rounds,
        warm_up=False,
    )


def tables(quick: bool) -> Iterator[Table]:
    """Take the figures."""
    normal = np.random.default_rng(0).normal(4, 0.8, 10**6 if quick else 10**7)
    log_normal = np.maximum(np.exp(normal), 1).astype(np.int64)
    names = np.array([len(name.encode()) for name in load_names()[0]])
    for title, lengths in {"names": names, "log-normal": log_normal[:20_000]}.items():
        title = f"{len(lengths):,} {title}: positions that are padding"
        yield Table(title=title, unit="%", rows=list(shares(lengths)))
    yield planning(log_normal, num_rounds=2 if quick else 3)


if __name__ == "__main__":
    main(tables, __doc__)
