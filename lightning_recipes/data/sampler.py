"""The sampler that turns coordinates into this rank's indices, and keeps the position in them."""

from collections.abc import Iterator
from typing import Any

import torch.distributed
from torch.utils.data.distributed import DistributedSampler

from lightning_recipes.data.length_buckets import LengthBuckets
from lightning_recipes.data.order import Order, UniformOrder, share
from lightning_recipes.data.seeded_dataset import BatchIndices

__all__ = ["BatchesOf", "CoordinateSampler"]


class CoordinateSampler(DistributedSampler[Any]):
    """This rank's sample indices from a batch of an epoch on.

    It is a ``DistributedSampler`` so that Lightning neither replaces nor shards it again, and calls
    its ``set_epoch``. Rank and world size are looked up whenever they are needed, because a loader
    is often built before the process group.

    Where a global batch has fewer samples than there are ranks, a rank left without a share
    repeats one sample, so that every rank has the same number of batches: a *filler*, which
    :meth:`is_filler` tells and which must weigh nothing in a loss or metric.

    The position is ``(epoch, batch)``: batches handed out in this epoch. An iteration starts at
    batch 0 of the epoch, or at the loaded position; one that has come to its end moves on to the
    next epoch, so that a plain loop over the loader reshuffles without ``set_epoch``.

    Args:
        num_samples: Length of the data set.
        batch_size: Per rank.
        seed: Of the shuffle.
        shuffle: A new permutation every epoch.
        drop_last: Leave out an incomplete last global batch.
        buckets: Batches of samples of similar length; None for batches of any.
        rank: Fixed rank; None for that of the process group.
        world_size: Fixed number of ranks; None for that of the process group.
    """

    def __init__(  # no super().__init__: it would ask for the process group now
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        buckets: LengthBuckets | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.num_dataset_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.buckets = buckets
        self.batch = 0
        self.fill = True
        self._rank = rank
        self._world_size = world_size
        self._base_epoch = 0  # as set from outside
        self._passes = 0  # whole passes since then
        self._is_resuming = False
        self._planned: tuple[int, Order] | None = None

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This process's rank."""
        if self._rank is not None:
            return self._rank
        return torch.distributed.get_rank() if _has_process_group() else 0

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The world size."""
        if self._world_size is not None:
            return self._world_size
        return torch.distributed.get_world_size() if _has_process_group() else 1

    @property
    def order(self) -> Order:
        """The plan of the epochs for the present world size."""
        if self.is_bucketed:
            return self._bucket_order(self.num_replicas)
        return UniformOrder(
            num_samples=self.num_dataset_samples,
            batch_size=self.batch_size * self.num_replicas,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )

    @property
    def is_bucketed(self) -> bool:
        """Whether batches have similar lengths, and need not have one size; never in prediction."""
        return self.buckets is not None and self.fill

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that is being handed out, or will be next."""
        return self._base_epoch + self._passes

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``, unless a position inside it was just loaded."""
        if not (self._is_resuming and epoch == self._base_epoch):
            self._base_epoch, self._passes, self.batch, self._is_resuming = epoch, 0, 0, False

    def begin(self) -> None:
        """Start an iteration, at batch 0 or at the loaded position."""
        if not self._is_resuming:
            self.batch = 0
        self._is_resuming = False

    def finish(self) -> None:
        """Move on to the next epoch, all batches of this one being handed out."""
        self._passes, self.batch = self._passes + 1, 0

    def position(self) -> dict[str, int]:
        """Return ``{"epoch", "batch", "passes"}``, all that a resume needs."""
        return {"epoch": self.epoch, "batch": self.batch, "passes": self._passes}

    def go_to(self, *, epoch: int, batch: int, passes: int) -> None:
        """Let the next iteration start at a :meth:`position`."""
        if batch >= len(self.order):
            epoch, batch, passes = epoch + 1, 0, passes + 1
        self._base_epoch, self._passes, self.batch = epoch - passes, passes, batch
        self._is_resuming = True

    def is_filler(self, k: int) -> bool:
        """Return whether this rank's batch ``k`` of this epoch only evens out the ranks."""
        return not share(self.order.size(self.epoch, k), self.rank, self.num_replicas)

    def indices(self, epoch: int, batches: range) -> Iterator[list[int]]:
        """Yield the indices of the samples in this rank's ``batches`` of ``epoch``."""
        order, rank, world_size = self.order, self.rank, self.num_replicas
        shares = order.shares(epoch, batches, rank=rank, world_size=world_size)
        for k, mine in zip(batches, shares, strict=True):
            if self.fill and not len(mine):
                mine = order.batch(epoch, k)[:1]
            yield mine.tolist()

    def last_indices(self) -> list[int]:
        """Return the indices of the batch that was handed out last, none before the first."""
        if not self.batch:
            return []
        return next(self.indices(self.epoch, range(self.batch - 1, self.batch)))

    def next_indices(self) -> list[int]:
        """Return the indices of the batch that would be handed out next, without those of a filler.

        At the end of an epoch: of its last batch.
        """
        k = min(self.batch, len(self.order) - 1)
        return [] if self.is_filler(k) else next(self.indices(self.epoch, range(k, k + 1)))

    def __iter__(self) -> Iterator[int]:
        for batch in BatchesOf(self):
            yield from batch

    def __len__(self) -> int:
        """Return the number of this rank's samples in a whole epoch."""
        order, rank, world_size = self.order, self.rank, self.num_replicas

        def num_mine(k: int) -> int:
            return len(share(order.size(self.epoch, k), rank, world_size)) or int(self.fill)

        last = len(order) - 1
        if self.is_bucketed or last < 0:
            return sum(map(num_mine, range(len(order))))
        return num_mine(0) * last + num_mine(last)

    def _bucket_order(self, world_size: int) -> Order:
        assert self.buckets is not None
        if self._planned is None or self._planned[0] != world_size:
            order = self.buckets.order(
                batch_size=self.batch_size,
                world_size=world_size,
                seed=self.seed,
                shuffle=self.shuffle,
            )
            self._planned = (world_size, order)
        return self._planned[1]


class BatchesOf:
    """The indices of a sampler batch by batch, as often as persistent workers ask for them."""

    def __init__(self, sampler: CoordinateSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[BatchIndices]:
        epoch, rest = self.sampler.epoch, range(self.sampler.batch, len(self.sampler.order))
        for indices in self.sampler.indices(epoch, rest):
            yield BatchIndices(indices, epoch)


def _has_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
