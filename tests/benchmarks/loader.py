"""What seeding every sample costs: ``python -m tests.benchmarks.loader [--quick] [--json FILE]``.

Whole shuffled epochs of ours, of torch's DataLoader and of torchdata's StatefulDataLoader, with
three kinds of samples: a row of a tensor, which leaves nothing to seed; the same with noise on it,
where the seeds of a sample cost more than the sample; and one that keeps a core busy for a
millisecond, as decoding a picture does. Workers are persistent, and their start does not count.
More is better.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_recipes import ResumableDataLoader
from tests.benchmarks.report import Table, Way, compare, main

WIDTH = 32


class Noisy(TensorDataset):
    """Rows with noise on them."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return (self.tensors[0][index] + torch.randn(WIDTH),)


class Busy(TensorDataset):
    """Rows that take a millisecond."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        return (self.tensors[0][index],)


def stateful() -> Callable[..., Iterable[Any]] | None:
    """Return torchdata's loader, or None where that is not installed."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ModuleNotFoundError:
        return None
    loader: Callable[..., Iterable[Any]] = StatefulDataLoader
    return loader


def samples_per_second(loader: Iterable[Any], num_samples: int) -> float:
    """Go through an epoch."""
    start = time.perf_counter()
    for _ in loader:
        pass
    return num_samples / (time.perf_counter() - start)


def ask(
    title: str, dataset: Dataset[Any], num_samples: int, *, batch_sizes: list[int], num_rounds: int
) -> Iterator[Table]:
    """Yield the tables of one kind of samples."""
    kinds: dict[str, Callable[..., Iterable[Any]] | None] = {
        "ResumableDataLoader (ours)": ResumableDataLoader,
        "torch DataLoader": DataLoader,
        "torchdata StatefulDataLoader": stateful(),
    }
    for num_workers, batch_size in product((0, 2), batch_sizes):
        ways: dict[str, Way | None] = dict.fromkeys(kinds)
        for name, make in kinds.items():
            if make is not None:
                options = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
                loader = make(dataset, batch_size, shuffle=True, **options)
                ways[name] = partial(samples_per_second, loader, num_samples)
        setting = f"{title}, batches of {batch_size}, {num_workers} workers"
        yield compare(setting, "samples/s", ways, num_rounds=num_rounds)


def tables(quick: bool) -> Iterator[Table]:
    """Ask for each kind of samples."""
    torch.set_num_threads(1)
    batch_sizes, num_rounds = ([64], 2) if quick else ([64, 256], 9)
    for title, kind, num_samples in (
        ("a row", TensorDataset, 2**13 if quick else 2**15),
        ("a row and noise", Noisy, 2**12 if quick else 2**13),
        ("1 ms", Busy, 2**8 if quick else 2**9),
    ):
        dataset = kind(torch.randn(num_samples, WIDTH))
        yield from ask(title, dataset, num_samples, batch_sizes=batch_sizes, num_rounds=num_rounds)


if __name__ == "__main__":
    main(tables, __doc__)
