"""The seed of a sample, for whoever loads it, and the seeds of workers."""

import os

import torch
import torch.distributed

from lightning_recipes.rng import derive_seed, seed_host_generators

__all__ = ["being_loaded", "sample_seed", "seed_worker"]


class _SampleBeingLoaded:
    """Its seed, None between samples; and whether anybody asked for it."""

    seed: int | None = None
    was_asked = False


being_loaded = _SampleBeingLoaded()


def sample_seed() -> int:
    """Return the seed of the sample being loaded: a function of ``(seed, epoch, index)``.

    For data sets and transforms that hold a generator of their own, which no global seed reaches::

        def __getitem__(self, i):
            rng = np.random.default_rng(sample_seed())

    Raises:
        RuntimeError: No :class:`~lightning_recipes.ResumableDataLoader` is loading a sample.
    """
    being_loaded.was_asked = True
    if being_loaded.seed is None:
        raise RuntimeError(
            "sample_seed() has a value only inside a data set's __getitem__ that is called by a "
            "ResumableDataLoader. Load through one, or keep a fixed generator for other uses."
        )
    return being_loaded.seed


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
