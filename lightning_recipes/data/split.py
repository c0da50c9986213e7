"""Split a data set, the same on every rank, at every stage, in every run."""

import itertools
from collections.abc import Sequence

import numpy as np

from lightning_recipes.data.order import Indices, permute

__all__ = ["split_indices"]


def split_indices(length: int, shares: Sequence[float], *, seed: int = 0) -> list[Indices]:
    """Return disjoint random subsets of ``range(length)`` that together are all of it.

    A function of its arguments alone: no generator is drawn from, so ranks cannot disagree and
    ``trainer.test`` sees the split of ``trainer.fit``.

    Args:
        length: Number of samples.
        shares: Size of each subset as a share of ``length``; they sum to 1.
        seed: Selects the split. Keep it when you change the seed of the training.

    Raises:
        ValueError: The shares do not sum to 1, or a subset would be empty.

    Example:
        >>> [len(part) for part in split_indices(10, (0.8, 0.2))]
        [8, 2]
    """
    if abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"The shares of a split sum to 1, got {tuple(shares)}.")
    edges = [round(length * edge) for edge in (0.0, *itertools.accumulate(shares))]
    if any(start >= stop for start, stop in itertools.pairwise(edges)):
        raise ValueError(
            f"Every subset needs a sample, got {length} samples for the shares {tuple(shares)}."
        )
    order = permute(np.arange(length), length, seed=seed)
    return [np.sort(order[start:stop]) for start, stop in itertools.pairwise(edges)]
