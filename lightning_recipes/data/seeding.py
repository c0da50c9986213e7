"""Seed every sample where it is loaded: neither workers, ranks nor a resume can change it."""

import os
from collections.abc import Sequence, Sized
from typing import Generic, TypeVar

import torch
import torch.distributed
from torch.utils.data import Dataset

from lightning_recipes.rng import derive_seed, seed_host_generators

__all__ = ["SampleIndex", "SeededDataset", "sample_seed", "seed_worker"]

T_co = TypeVar("T_co", covariant=True)

_current_seed: int | None = None


class SampleIndex(int):
    """A sample's index that knows its epoch.

    It is an ordinary ``int`` to everybody else. The epoch has to travel with the index: persistent
    workers hold a copy of the data set made long before.
    """

    epoch: int

    def __new__(cls, index: int, epoch: int = 0) -> "SampleIndex":
        """Return ``index``, loaded in ``epoch``."""
        self = super().__new__(cls, index)
        self.epoch = epoch
        return self


class SeededDataset(Dataset[T_co], Generic[T_co]):
    """A map-style data set whose samples are loaded with all host generators seeded.

    ``python``, ``numpy`` and ``torch`` are seeded from ``(seed, epoch, index)`` before each sample,
    and left there: whoever fetches in the main process puts them back, as
    :class:`~lightning_recipes.ResumableDataLoader` does once per batch.

    Args:
        dataset: The data set; found again as ``.dataset``.
        seed: Of the augmentations.
    """

    def __init__(self, dataset: Dataset[T_co], *, seed: int = 0) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        assert isinstance(self.dataset, Sized)
        return len(self.dataset)

    def __getitem__(self, index: int) -> T_co:
        global _current_seed
        outer_seed = _current_seed
        _current_seed = derive_seed(self.seed, getattr(index, "epoch", 0), index)
        try:
            seed_host_generators(_current_seed)
            return self.dataset[int(index)]
        finally:
            _current_seed = outer_seed

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        return [self[index] for index in indices]


def sample_seed() -> int:
    """Return the seed of the sample being loaded: a function of ``(seed, epoch, index)``.

    For data sets and transforms that hold a generator of their own, which no global seed reaches::

        def __getitem__(self, i):
            rng = np.random.default_rng(sample_seed())

    Raises:
        RuntimeError: No :class:`~lightning_recipes.ResumableDataLoader` is loading a sample.
    """
    if _current_seed is None:
        raise RuntimeError(
            "sample_seed() has a value only inside a data set's __getitem__ that is called by a "
            "ResumableDataLoader. Load through one, or keep a fixed generator for other uses."
        )
    return _current_seed


def seed_worker(worker_id: int) -> None:
    """Seed python, numpy and torch in a loader's worker: a ``worker_init_fn`` for any DataLoader.

    Distinct for every rank, worker, seed and epoch (with persistent workers once, when they start):
    torch gives each worker a number drawn from the loader's generator, equal on all ranks after
    ``seed_everything``, and this function adds the rank. Where every sample should be reproducible
    by itself, use :class:`~lightning_recipes.ResumableDataLoader` instead.

    Args:
        worker_id: Given by the DataLoader; already part of the worker's ``torch.initial_seed()``.
    """
    seed = derive_seed(torch.initial_seed(), _global_rank())
    seed_host_generators(seed)


def _global_rank() -> int:
    # A forked worker inherits the process group, a spawned one only the environment.
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0
