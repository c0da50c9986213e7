"""Exact resume for a loader that is there already."""

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_recipes.data.loader import ResumableDataLoader

__all__ = ["resumable"]

_KEPT = (
    *("collate_fn", "drop_last", "num_workers", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device"),
)


def resumable(loader: DataLoader[Any], *, seed: int = 0) -> ResumableDataLoader:
    """Return a :class:`~lightning_recipes.ResumableDataLoader` in place of a ``DataLoader``.

    Data set, batch size, collate function, workers and pinning stay; a shuffled loader stays
    shuffled, in an order of its own.

    Args:
        loader: Map-style, with random, sequential or distributed sampling and default batching.
        seed: Of order and augmentation.

    Raises:
        TypeError: The data set is iterable-style.
        ValueError: The loader has a sampler or batching of its own, whose order is no function of
            coordinates.

    Example:
        >>> loader = DataLoader(range(10), batch_size=4, shuffle=True)
        >>> sorted(int(i) for batch in resumable(loader) for i in batch)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if isinstance(loader, ResumableDataLoader):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"resumable() needs a map-style data set, got the iterable-style "
            f"{type(loader.dataset).__name__}: its samples have no index to compute an order from. "
            "Use a loader that saves the position of the stream, such as torchdata's "
            "StatefulDataLoader; ResumeCheckpoint saves and restores that one too."
        )
    if type(loader.batch_sampler) is not BatchSampler:
        found = type(loader.batch_sampler).__name__ if loader.batch_sampler else "batch_size=None"
        raise ValueError(
            f"resumable() needs default batching, got {found}: its batches are no function of "
            "(seed, epoch, batch). Give batch_size, and group samples in the data set."
        )
    sampler = loader.sampler
    is_random = type(sampler) is RandomSampler and not sampler.replacement
    if is_random and len(sampler) == len(loader.dataset):  # type: ignore[arg-type]
        shuffle = True
    elif type(sampler) is SequentialSampler:
        shuffle = False
    elif type(sampler) is DistributedSampler:
        shuffle = sampler.shuffle
    else:
        raise ValueError(
            "resumable() needs random or sequential sampling of the whole data set, got "
            f"{type(sampler).__name__}: its order is no function of (seed, epoch, batch). Choose "
            "or weight samples in the data set (torch.utils.data.Subset)."
        )
    assert loader.batch_size is not None
    kept = {name: getattr(loader, name) for name in _KEPT}
    return ResumableDataLoader(
        loader.dataset, loader.batch_size, shuffle=shuffle, seed=seed, **kept
    )
