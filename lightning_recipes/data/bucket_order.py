"""The plan of an epoch whose batches hold samples of similar length."""

from collections.abc import Iterator

import numpy as np

from lightning_recipes.data.order import Indices, permute, share
from lightning_recipes.rng import derive_seed

__all__ = ["BucketOrder"]

_ORDER_OF_BATCHES, _WITHIN_BUCKETS = 0, 1


class BucketOrder:
    """An :class:`~lightning_recipes.data.order.Order` of samples of similar length.

    The samples by length are cut into buckets, and a bucket into *slots*, one for each of its
    batches. Their sizes are fixed, so that every epoch has the same number of batches; which
    samples of the bucket a slot gets, and when its batch comes, is a permutation evaluated on
    demand. See :class:`~lightning_recipes.LengthBuckets`.

    Args:
        lengths: Of every sample, int64, (N,).
        by_length: The samples from the longest to the shortest, int64, (N,).
        batch_size: Per rank, without a budget.
        max_tokens: The budget of a rank's batch, or None.
        world_size: Number of ranks.
        window: Slots to a bucket.
        seed: Of the shuffle.
        shuffle: Else the slots in their order, with their samples in theirs.
        longest_first: Begin with the longest sample's batch.
    """

    def __init__(
        self,
        *,
        lengths: Indices,
        by_length: Indices,
        batch_size: int,
        max_tokens: int | None,
        world_size: int,
        window: int,
        seed: int,
        shuffle: bool,
        longest_first: bool,
    ) -> None:
        self.lengths = lengths
        self.by_length = by_length
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.world_size = world_size
        self.window = window
        self.seed = seed
        self.shuffle = shuffle
        self.longest_first = longest_first
        buckets = np.array(list(self._buckets()), dtype=np.int64)
        self._starts, self._sizes, self._num_slots = buckets.T
        self._first_slots = np.cumsum(self._num_slots) - self._num_slots

    def __len__(self) -> int:
        return int(self._num_slots.sum())

    def batch(self, epoch: int, k: int) -> Indices:
        """Return the sample indices of the global batch ``k``, shape (N,), rank after rank."""
        bucket, positions = self._positions(self._slot(epoch, k))
        if self.shuffle:
            positions = self._permuted(positions, epoch, bucket)
        return self._dealt(self.by_length[self._starts[bucket] + positions])

    def size(self, epoch: int, k: int) -> int:
        """Return how many samples the global batch ``k`` has."""
        return len(self._positions(self._slot(epoch, k))[1])

    def shares(
        self, epoch: int, batches: range, *, rank: int, world_size: int
    ) -> Iterator[Indices]:
        """Yield the part of ``rank`` in each of the global batches."""
        for k in batches:
            batch = self.batch(epoch, k)
            part = share(len(batch), rank, world_size)
            yield batch[part.start : part.stop]

    def _buckets(self) -> Iterator[tuple[int, int, int]]:
        """Yield where each bucket starts, how many samples it has, and how many slots."""
        start, num_samples = 0, len(self.lengths)
        while start < num_samples:
            per_rank = self.batch_size
            if self.max_tokens is not None:
                longest = int(self.lengths[self.by_length[start]])
                per_rank = self.max_tokens // max(longest, 1)
            per_slot = per_rank * self.world_size
            size = min(self.window * per_slot, num_samples - start)
            yield start, size, -(-size // per_slot)
            start += size

    def _slot(self, epoch: int, k: int) -> int:
        if not self.shuffle:
            return k
        seed = derive_seed(self.seed, epoch, _ORDER_OF_BATCHES)
        slot = int(permute(np.array([k]), len(self), seed=seed)[0])
        if self.longest_first:
            # Swap the first batch of this epoch with that of the longest sample.
            first = int(permute(np.array([0]), len(self), seed=seed)[0])
            longest = self._slot_of_longest(epoch)
            slot = longest if k == 0 else first if slot == longest else slot
        return slot

    def _slot_of_longest(self, epoch: int) -> int:
        permuted = self._permuted(np.arange(self._sizes[0]), epoch, bucket=0)
        (position,) = np.flatnonzero(permuted == 0)
        slots = range(int(self._num_slots[0]))
        return next(slot for slot in slots if position in self._positions(slot)[1])

    def _positions(self, slot: int) -> tuple[int, Indices]:
        """Return the bucket of a slot, and which positions in it are the slot's.

        They are counted in rounds of one sample for each rank, and only the last round of a bucket
        can be incomplete.
        """
        bucket = int(np.searchsorted(self._first_slots, slot, side="right")) - 1
        size, num_slots = int(self._sizes[bucket]), int(self._num_slots[bucket])
        num_rounds = -(-size // self.world_size)
        mine = share(num_rounds, slot - int(self._first_slots[bucket]), num_slots)
        start, stop = mine.start * self.world_size, mine.stop * self.world_size
        return bucket, np.arange(start, min(stop, size), dtype=np.int64)

    def _permuted(self, positions: Indices, epoch: int, bucket: int) -> Indices:
        seed = derive_seed(self.seed, epoch, _WITHIN_BUCKETS, bucket)
        return permute(positions, int(self._sizes[bucket]), seed=seed)

    def _dealt(self, samples: Indices) -> Indices:
        """Order the samples such that the ranks' shares have similar numbers of tokens.

        Dealt from the longest to the shortest, back and forth, as cards are to even hands out; a
        last incomplete round goes to the ranks whose shares are larger.
        """
        size, world_size = len(samples), self.world_size
        samples = samples[np.argsort(-self.lengths[samples], kind="stable")]
        shares = [share(size, rank, world_size) for rank in range(world_size)]
        num_rounds = size // world_size
        rounds = samples[: num_rounds * world_size].reshape(num_rounds, world_size)
        rounds[1::2] = rounds[1::2, ::-1].copy()
        rest = iter(samples[num_rounds * world_size :])
        hands = [
            [*rounds[:, rank], *(next(rest) for _ in range(len(shares[rank]) - num_rounds))]
            for rank in range(world_size)
        ]
        return np.array([sample for hand in hands for sample in hand], dtype=np.int64)
