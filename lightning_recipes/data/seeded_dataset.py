"""Seed every sample where it is loaded: neither workers, ranks nor a resume can change it."""

import itertools
import math
import random
import time
from collections.abc import Sequence, Sized
from typing import Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

from lightning_recipes.data.sample import copy_sample, first_difference
from lightning_recipes.data.seeding import being_loaded
from lightning_recipes.draws import DrawWatch
from lightning_recipes.rng import derive_seed, preserve_rng, seed_host_generators

__all__ = ["BatchIndices", "SeededDataset"]

T_co = TypeVar("T_co", covariant=True)

# The seeds of a sample take 7 us: less than a tenth of one that takes longer than this.
_QUICK_S = 100e-6
_NUM_PROOFS = 32


class BatchIndices(list[int]):
    """The indices of a batch that know their epoch.

    The epoch has to travel with them: persistent workers hold a copy of the data set made long
    before.
    """

    __slots__ = ("epoch",)

    def __init__(self, indices: Sequence[int], epoch: int = 0) -> None:
        super().__init__(indices)
        self.epoch = epoch


class SeededDataset(Dataset[T_co], Generic[T_co]):
    """A map-style data set whose samples are loaded with all host generators seeded.

    ``python``, ``numpy`` and ``torch`` are seeded from ``(seed, epoch, index)`` before each sample,
    and left there: whoever fetches in the main process puts them back, as
    :class:`~lightning_recipes.ResumableDataLoader` does once per batch.

    Where samples are quick to load, as rows of a tensor are, the seeds would take most of the time.
    So a process loads its first batches of such a data set twice, the second time unseeded, and if
    both are the same bit by bit and nothing was drawn, leaves the seeds out. It still watches, and
    a batch during which something is drawn is loaded again with its seeds, as are all after it.
    Whether seeds are left out can be seen in the time alone; only a data set that draws *and* puts
    the generators back itself has to ask :func:`~lightning_recipes.sample_seed`.

    Args:
        dataset: The data set; found again as ``.dataset``.
        seed: Of the augmentations.

    Attributes:
        collate_draws: Whether what makes a batch of the samples may draw. Then the generators are
            in the state of the last sample for it, be the seeds left out or not.
    """

    def __init__(self, dataset: Dataset[T_co], *, seed: int = 0) -> None:
        self.dataset = dataset
        self.seed = seed
        self.collate_draws = True
        self._num_proofs = 0.0  # samples that need no seeds; -inf as soon as one does

    def __len__(self) -> int:
        assert isinstance(self.dataset, Sized)
        return len(self.dataset)

    def __getitem__(self, index: int) -> T_co:
        return self._load(index, epoch=0)

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        epoch = getattr(indices, "epoch", 0)
        if self._num_proofs < _NUM_PROOFS:
            return self._load_and_prove(indices, epoch)
        samples = self._load_unseeded(indices)
        if samples is None:
            self._num_proofs = -math.inf
            return [self._load(index, epoch) for index in indices]
        if self.collate_draws:
            seed_host_generators(derive_seed(self.seed, epoch, indices[-1]))
        return samples

    def _load(self, index: int, epoch: int) -> T_co:
        outer_seed = being_loaded.seed
        being_loaded.seed = seed = derive_seed(self.seed, epoch, index)
        try:
            seed_host_generators(seed)
            return self.dataset[int(index)]
        finally:
            being_loaded.seed = outer_seed

    def _load_and_prove(self, indices: Sequence[int], epoch: int) -> list[T_co]:
        samples, times = [], [time.perf_counter()]
        being_loaded.was_asked = False
        for index in indices:
            samples.append(self._load(index, epoch))
            times.append(time.perf_counter())
        if self._num_proofs >= 0:
            is_quick = min(b - a for a, b in itertools.pairwise(times)) < _QUICK_S
            last_seed = derive_seed(self.seed, epoch, indices[-1])
            with preserve_rng(device=False):
                is_proof = is_quick and self._needs_no_seeds(indices, samples, last_seed)
            self._num_proofs += len(indices) if is_proof else -math.inf
        return samples

    def _needs_no_seeds(self, indices: Sequence[int], samples: list[T_co], last_seed: int) -> bool:
        next_numbers = _next_numbers()
        seed_host_generators(last_seed)
        if being_loaded.was_asked or next_numbers != _next_numbers():
            return False
        try:
            # Copied before the second load, which may use the same memory again.
            copies = [copy_sample(sample) for sample in samples]
        except TypeError:
            return False
        seed_host_generators(last_seed ^ 1)  # for what depends on the state and puts it back
        again = self._load_unseeded(indices)
        return again is not None and first_difference(copies, again) is None

    def _load_unseeded(self, indices: Sequence[int]) -> list[T_co] | None:
        """Load a batch, or return None if it would have been another one with its seeds."""
        outer_seed = being_loaded.seed
        being_loaded.seed, being_loaded.was_asked = 0, False
        load_batch = getattr(self.dataset, "__getitems__", None)
        watch = DrawWatch()
        try:
            samples = load_batch(indices) if load_batch else [self.dataset[i] for i in indices]
        except Exception:
            return None  # loaded again, it fails again, if it was not for the seeds
        finally:
            being_loaded.seed = outer_seed
        return None if being_loaded.was_asked or watch.saw_draws() else samples


def _next_numbers() -> tuple[int, bytes, bytes]:
    state: bytes = torch.get_rng_state().numpy().tobytes()
    return random.getrandbits(64), np.random.bytes(8), state  # noqa: NPY002
