"""Batches of samples of similar length, computed on demand like every other order."""

import zlib
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from lightning_recipes.data.bucket_order import BucketOrder
from lightning_recipes.data.order import Indices

__all__ = ["LengthBuckets"]


class LengthBuckets:
    """Group samples of similar length, so that little of a batch is padding.

    For ``ResumableDataLoader(dataset, batch_size, shuffle=True, buckets=LengthBuckets(lengths))``.
    The samples, sorted once by length, are cut into buckets of ``window`` batches each. In every
    epoch the samples of a bucket are dealt to its batches anew, and the batches of all buckets come
    in a new order. Like any order here that is a function of ``(seed, epoch, batch)``: any batch
    can be asked for at once, every sample comes once, every rank has the same number of batches in
    every epoch, and the ranks' shares of a batch have about the same number of tokens.

    Nothing is dropped, whatever ``drop_last`` says: what is left over makes the batches of the
    shortest samples smaller. One batch of an epoch at most has fewer samples than there are ranks;
    there a rank repeats a sample (:meth:`~lightning_recipes.ResumableDataLoader.is_filler`).

    Args:
        lengths: Of every sample, integers >= 0, shape (N,), e.g. ``dataset.lengths``. Sorting them
            takes about a second for 10**7, once; an epoch starts at no cost.
        max_tokens: A budget for each rank's batch, padding included: number of samples times the
            longest length. Batches of short samples then have more of them, and the loader's
            ``batch_size`` says nothing. None: ``batch_size`` samples for each rank.
        window: Batches to a bucket. More mix better, fewer pad less.
        longest_first: Begin every epoch with the batch that holds the longest sample, so that a
            lack of memory shows at once.

    Raises:
        ValueError: A length is negative or no integer, a sample is longer than ``max_tokens``, or
            an argument is out of range.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        max_tokens: int | None = None,
        window: int = 4,
        longest_first: bool = False,
    ) -> None:
        self.lengths = _checked_lengths(lengths)
        if window < 1:
            raise ValueError(f"window is a number of batches >= 1, got {window}.")
        longest = int(self.lengths.argmax())
        if max_tokens is not None and self.lengths[longest] > max_tokens:
            raise ValueError(
                f"Every sample must fit the budget of max_tokens={max_tokens}; sample {longest} "
                f"has length {self.lengths[longest]}. Raise the budget, or truncate or leave out "
                "longer samples."
            )
        self.max_tokens = max_tokens
        self.window = window
        self.longest_first = longest_first

    def __len__(self) -> int:
        return len(self.lengths)

    def order(
        self, *, batch_size: int, world_size: int, seed: int = 0, shuffle: bool = False
    ) -> BucketOrder:
        """Return the plan of the epochs.

        Args:
            batch_size: Per rank; not used with a budget.
            world_size: Number of ranks.
            seed: Of the shuffle.
            shuffle: New batches in a new order every epoch; else from the longest to the shortest.
        """
        return BucketOrder(
            lengths=self.lengths,
            by_length=self._by_length,
            batch_size=batch_size,
            max_tokens=self.max_tokens,
            world_size=world_size,
            window=self.window,
            seed=seed,
            shuffle=shuffle,
            longest_first=self.longest_first,
        )

    @cached_property
    def identity(self) -> str:
        """What a position in an epoch depends on, in words, to be kept beside it."""
        digest = zlib.crc32(self.lengths.tobytes())
        return (
            f"lengths #{digest:08x}, max_tokens={self.max_tokens}, window={self.window}, "
            f"longest_first={self.longest_first}"
        )

    @cached_property
    def _by_length(self) -> Indices:
        """The samples from the longest to the shortest."""
        shortness = self.lengths.max() - self.lengths
        if shortness.max() < 2**16:
            shortness = shortness.astype(np.uint16)  # numpy has a radix sort for those
        return np.argsort(shortness, kind="stable")


def _checked_lengths(lengths: ArrayLike) -> Indices:
    array = np.asarray(lengths)
    if array.ndim != 1 or not len(array) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"lengths are integers, one for each sample, got shape {array.shape} and dtype "
            f"{array.dtype}."
        )
    shortest = int(array.argmin())
    if array[shortest] < 0:
        raise ValueError(f"A length is >= 0, got {array[shortest]} for sample {shortest}.")
    return array.astype(np.int64)
