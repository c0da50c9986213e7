"""A DataLoader whose position is two integers."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    default_collate,
)

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.length_buckets import LengthBuckets
from lightning_recipes.data.sampler import BatchesOf, CoordinateSampler
from lightning_recipes.data.seeded_dataset import SeededDataset
from lightning_recipes.rng import RNGSnapshot, derive_seed

__all__ = ["ResumableDataLoader"]

_VERSION = 2


class ResumableDataLoader(DataLoader[Any]):
    """A DataLoader that can stop anywhere and go on exactly there, in O(1).

    Which samples make batch ``k`` of epoch ``e``, and what augmentation each of them receives, is a
    function of ``(seed, epoch, k, rank, index)``. So the position is two integers; a resume loads
    nothing that was already seen; the batches are the same for 0, 1 or 16 workers; the *global*
    batch is the same for 1 rank x 8 and 2 ranks x 4; and an epoch of 10**9 samples is shuffled
    without a table.

    Each sample is loaded with python's, numpy's and torch's global generators seeded from ``(seed,
    epoch, index)``, or without where it is quick and was seen to need no seeds (see
    :class:`~lightning_recipes.data.seeded_dataset.SeededDataset`); what ``collate_fn`` draws
    follows from the last sample of the batch. The main process's generators are never drawn from,
    and are put back where the loading happens in it. Data sets and transforms with a generator of
    their own ask :func:`~lightning_recipes.sample_seed` for a seed.

    Under DDP every rank takes its share of the global batch, with Lightning's
    ``use_distributed_sampler`` on or off. All ranks have the same number of batches: in the last
    one, where samples may be fewer than ranks, a rank repeats a sample (:meth:`is_filler`). In
    ``trainer.predict`` nothing is repeated and nothing dropped, and samples are seeded as in epoch
    0.

    Args:
        dataset: Map-style, with ``__len__`` and ``__getitem__``. Found again as
            ``loader.dataset.dataset``.
        batch_size: Samples per rank and batch.
        shuffle: A new order every epoch.
        seed: Of order and augmentation, an integer >= 0.
        drop_last: Leave out an incomplete last global batch.
        buckets: Batches of samples of similar length, :class:`~lightning_recipes.LengthBuckets`;
            prediction, which keeps the order of the data set, takes no notice.
        collate_fn: Makes a batch of a list of samples; torch's default stacks them.
        num_workers: Processes that load; 0 loads in the main process.
        rank: This process's rank; by default that of the process group, when it is needed.
        world_size: Number of ranks; by default that of the process group, when it is needed.
        **dataloader_kwargs: Further arguments of ``torch.utils.data.DataLoader``. ``sampler`` and
            ``batch_sampler`` are for Lightning, which rebuilds loaders with them.

    Raises:
        TypeError: The data set is iterable-style or has no length.
        ValueError: The data set is empty, shorter than the number of ranks while training, or an
            argument is out of range.

    Example:
        >>> loader = ResumableDataLoader(range(10), batch_size=3)
        >>> batches = iter(loader)
        >>> next(batches), next(batches)
        (tensor([0, 1, 2]), tensor([3, 4, 5]))
        >>> resumed = ResumableDataLoader(range(10), batch_size=3)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> list(resumed)
        [tensor([6, 7, 8]), tensor([9])]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        buckets: LengthBuckets | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        sampler = dataloader_kwargs.pop("sampler", None)
        batch_sampler = dataloader_kwargs.pop("batch_sampler", None)
        if not isinstance(dataset, SeededDataset):
            _check_dataset(dataset)
            dataset = SeededDataset(dataset, seed=seed)
        _check_arguments(batch_size, seed, rank, world_size, dataloader_kwargs)
        _check_buckets(buckets, len(dataset))
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.buckets = buckets
        # Its own, because torch draws a base seed for the workers at every iter(), and from the
        # global generator if there is no other.
        dataloader_kwargs.setdefault("generator", torch.Generator().manual_seed(derive_seed(seed)))
        dataloader_kwargs.update(collate_fn=collate_fn, num_workers=num_workers)
        if batch_sampler is not None:
            # Lightning rebuilds a loader around a batch sampler for one purpose, prediction.
            self._coordinates = _checked_sampler(getattr(batch_sampler, "sampler", batch_sampler))
            self._is_predicting, self._drop_last = True, False
            super().__init__(dataset, batch_sampler=batch_sampler, **dataloader_kwargs)
            return
        if isinstance(sampler, SequentialSampler):  # Trainer(overfit_batches=...)
            self.shuffle, sampler = False, None
        self._coordinates = _checked_sampler(sampler) or CoordinateSampler(
            len(dataset),
            batch_size,
            seed=seed,
            shuffle=self.shuffle,
            drop_last=drop_last,
            buckets=buckets,
            rank=rank,
            world_size=world_size,
        )
        self._is_predicting, self._drop_last = False, drop_last
        super().__init__(
            dataset,
            batch_size,
            sampler=self._coordinates,
            drop_last=drop_last,
            **dataloader_kwargs,
        )
        if type(self) is ResumableDataLoader:
            # What Lightning (2.6.6) noted of a loader made in a hook makes trainer.predict pass
            # batch_size twice where it was given by position. Without, it reads the attributes.
            vars(self).pop("__pl_saved_args", None)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        self._prepare()
        num_batches = len(self._coordinates.order)
        return num_batches - (self._is_predicting and self.is_filler(num_batches - 1))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A generator runs nothing before its first next(): an epoch or a position that is set after
        # Lightning's early iter() is honoured, and no worker starts in vain.
        self._prepare()
        self._coordinates.begin()
        batches = super().__iter__()
        end = object()
        while True:
            # preserve_rng() unrolled: where samples are quick, a context manager can be measured
            snapshot = None if self.num_workers else RNGSnapshot.take(device=False)
            try:
                batch = next(batches, end)
            finally:
                if snapshot is not None:
                    snapshot.put_back()
            if batch is end:
                break
            self._coordinates.batch += 1
            yield batch
        self._coordinates.finish()

    @property
    def _index_sampler(self) -> Any:
        # torch's own (2.13) cuts what the sampler yields into batches of one size, and loses what
        # they know of themselves.
        return super()._index_sampler if self._is_predicting else BatchesOf(self._coordinates)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``. Lightning does this itself."""
        self._coordinates.set_epoch(epoch)

    def is_filler(self, batch_idx: int) -> bool:
        """Return whether this rank's batch repeats a sample only to even out the ranks."""
        return bool(self._coordinates.is_filler(batch_idx))

    def next_indices(self) -> list[int]:
        """Return the samples of this rank's next batch; nothing is fetched."""
        indices: list[int] = self._coordinates.next_indices()
        return indices

    def position(self) -> dict[str, int]:
        """Return ``{"epoch", "batch", "passes"}``, the part of the state that moves."""
        position: dict[str, int] = self._coordinates.position()
        return position

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what makes it meaningful: nine plain values."""
        return {"version": _VERSION, **self.position(), **self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any], *, nearest: bool = False) -> None:
        """Let the next iteration start at a saved position.

        Args:
            state_dict: From :meth:`state_dict`.
            nearest: Take a position saved with another global batch size, too, and start at the
                last batch that skips no sample; those of a part of a batch are seen again.

        Raises:
            ValueError: The state has another version, lacks a part, or was saved with another data
                set length, global batch size, seed or shuffle.
        """
        if state_dict.get("version") != _VERSION:
            raise ValueError(
                f"A loader state of version {_VERSION} is needed, got "
                f"{state_dict.get('version')!r}. It was saved by another loader or by another "
                "version of lightning_recipes."
            )
        identity = self._identity()
        if missing := sorted({"epoch", "batch", "passes", *identity} - set(state_dict)):
            raise ValueError(
                f"The loader state lacks {missing}: it was saved by another loader, or edited."
            )
        batch = state_dict["batch"]
        if nearest and self.buckets is None:  # with buckets other samples would share a batch
            batch = batch * state_dict["global_batch_size"] // identity.pop("global_batch_size")
        for name, value in identity.items():
            if state_dict[name] != value:
                raise ValueError(
                    f"The saved position has {name}={state_dict[name]!r}, this loader {value!r}: "
                    "the batches before and after would not belong to one epoch. Resume with the "
                    "saved value, or start a new run."
                )
        self._coordinates.go_to(epoch=state_dict["epoch"], batch=batch, passes=state_dict["passes"])

    def _identity(self) -> dict[str, Any]:
        sampler = self._coordinates
        return {
            "dataset_length": sampler.num_dataset_samples,
            "global_batch_size": sampler.batch_size * sampler.num_replicas,
            "seed": sampler.seed,
            "shuffle": sampler.shuffle,
            "buckets": None if sampler.buckets is None else sampler.buckets.identity,
        }

    def _prepare(self) -> None:
        sampler = self._coordinates
        # trainer.predict rebuilds the loader around the same sampler.
        sampler.fill, sampler.drop_last = not self._is_predicting, self._drop_last
        assert isinstance(self.dataset, SeededDataset)
        self.dataset.collate_draws = _may_draw(self.collate_fn)
        num_samples, world_size = sampler.num_dataset_samples, sampler.num_replicas
        if num_samples < world_size and (sampler.shuffle or self._is_predicting):
            raise ValueError(
                f"Training and prediction need a sample for every rank, got {num_samples} samples "
                f"for {world_size} ranks. Use fewer devices or more data."
            )
        if not len(sampler.order):
            raise ValueError(
                f"drop_last leaves no batch: {num_samples} samples, {sampler.batch_size} per rank "
                f"x {world_size} ranks. Use a smaller batch_size or drop_last=False."
            )


def _may_draw(collate_fn: Any) -> bool:
    return collate_fn is not default_collate and type(collate_fn) is not PadCollate


def _check_dataset(dataset: Any) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"ResumableDataLoader needs a map-style data set, got the iterable-style {kind}. Its "
            "samples have no index to compute an order from; use a loader that saves the position "
            "of the stream, such as torchdata's StatefulDataLoader."
        )
    if not hasattr(dataset, "__len__"):
        raise TypeError(
            f"ResumableDataLoader needs a data set with __len__, got {kind}. Define it, or wrap "
            "the part to use in torch.utils.data.Subset(dataset, range(n))."
        )
    if not len(dataset):
        raise ValueError(f"The data set must not be empty, got a {kind} of length 0.")


def _check_arguments(
    batch_size: Any, seed: int, rank: Any, world_size: Any, dataloader_kwargs: dict[str, Any]
) -> None:
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size is the number of samples per rank, >= 1, got {batch_size!r}.")
    derive_seed(seed)
    if (rank is None) != (world_size is None):
        raise ValueError(
            f"rank and world_size go together, got rank={rank} and world_size={world_size}. Leave "
            "both out to use those of the process group."
        )
    if world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, world_size), got {rank} of {world_size}.")
    if not dataloader_kwargs.get("in_order", True):
        raise ValueError("in_order=False lets the fastest worker decide the order; leave it out.")


def _check_buckets(buckets: LengthBuckets | None, num_samples: int) -> None:
    if buckets is not None and len(buckets) != num_samples:
        raise ValueError(
            f"LengthBuckets need the length of every sample, got {len(buckets)} lengths for "
            f"{num_samples} samples. Those of a Subset are the lengths of its own samples."
        )


def _checked_sampler(sampler: Any) -> Any:
    if sampler is not None and not isinstance(sampler, CoordinateSampler):
        raise ValueError(
            "ResumableDataLoader computes its own order, got the sampler "
            f"{type(sampler).__name__}. Leave it out; to choose or weight samples, do it in the "
            "data set (torch.utils.data.Subset)."
        )
    return sampler
