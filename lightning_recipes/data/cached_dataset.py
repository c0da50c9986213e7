"""Keep samples that are slow to load in memory, up to a limit."""

from collections.abc import Sized
from typing import Any, Generic, TypeVar, final

from torch.utils.data import Dataset

from lightning_recipes.data.sample import copy_sample, first_difference, sample_bytes
from lightning_recipes.data.seeded_dataset import SeededDataset
from lightning_recipes.rng import preserve_rng

__all__ = ["CachedDataset"]

T_co = TypeVar("T_co", covariant=True)


@final
class CachedDataset(Dataset[T_co], Generic[T_co]):
    """A map-style data set whose samples are loaded once, and then come from memory.

    Order: **cache below, augment above**. What is random is drawn anew for every sample and epoch,
    so it belongs in a data set around this one::

        Augmented(CachedDataset(Decoded(files), max_bytes=2**30))

    The other way round every epoch would get the first one's augmentations. That is an error here:
    the first ``num_checks`` samples that a process loads are loaded twice, with python, numpy,
    torch and :func:`~lightning_recipes.sample_seed` seeded differently, and must be the same bit by
    bit. All loading is sealed off: the samples are seeded by their index alone, and the global
    generators are left as found. So whether a sample comes from memory or not changes neither it
    nor what is drawn above, for any number of workers and after a resume.

    What is returned is a copy; changing it in place changes nothing here. A sample is a tensor
    (dense), numpy array, number, string, bytes or None, or lists, tuples, named tuples, dicts and
    dataclasses of them. Each process has its own cache: with ``num_workers=4`` the limit counts
    four times per rank, and without ``persistent_workers=True`` the caches end with the epoch. A
    copy sent to a spawned worker starts empty. Nothing is evicted: in a shuffled epoch every sample
    is used once, and no order of eviction beats keeping what is there.

    Args:
        dataset: The data set; found again as ``.dataset``.
        max_bytes: How much to keep per process. What no longer fits is loaded every time.
        num_checks: How many samples per process are loaded twice; 0 for none.

    Raises:
        ValueError: ``max_bytes`` or ``num_checks`` is out of range; or, while loading, the data set
            is random.
        TypeError: While loading, a sample holds something of which neither size nor copy is known.
    """

    def __init__(self, dataset: Dataset[T_co], *, max_bytes: int, num_checks: int = 16) -> None:
        for name, value, least in (("max_bytes", max_bytes, 1), ("num_checks", num_checks, 0)):
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is an integer >= {least}, got {value!r}.")
        self.dataset = dataset
        self.max_bytes = max_bytes
        self.num_checks = num_checks
        self._reset()

    @property
    def num_bytes(self) -> int:
        """How much this process keeps."""
        return self._num_bytes

    def __len__(self) -> int:
        assert isinstance(self.dataset, Sized)
        return len(self.dataset)

    def __getitem__(self, index: int) -> T_co:
        i = range(len(self))[index]
        if i in self._samples:
            sample = self._samples[i]
        else:
            sample = self._load(i)
            num_bytes = sample_bytes(sample)
            if self._num_bytes + num_bytes <= self.max_bytes:
                self._samples[i] = sample
                self._num_bytes += num_bytes
        copy: T_co = copy_sample(sample)
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._samples: dict[int, Any] = {}
        self._num_bytes = 0
        self._checks_left = self.num_checks

    def _load(self, i: int) -> Any:
        with preserve_rng(device=False):
            # Copied before the second load, which may use the same memory again.
            sample = copy_sample(SeededDataset(self.dataset, seed=0)[i])
            if self._checks_left:
                self._checks_left -= 1
                path = first_difference(sample, SeededDataset(self.dataset, seed=1)[i])
                if path is not None:
                    raise ValueError(
                        "CachedDataset returns the same sample in every epoch, so the data set in "
                        f"it must not be random; two loads of sample {i} differ"
                        f"{f' in field {path!r}' if path else ''}. Cache below, augment above: "
                        "Augmented(CachedDataset(raw, max_bytes=...))."
                    )
        return sample
