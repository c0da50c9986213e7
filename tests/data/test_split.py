# ruff: noqa: NPY002 - the global generators must stay untouched
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_recipes.data.split import split_indices


@given(
    length=st.integers(50, 500),
    weights=st.lists(st.integers(1, 10), min_size=1, max_size=5),
    seed=st.integers(0, 2**63 - 1),
)
def test_subsets_are_disjoint_complete_and_of_their_size(
    length: int, weights: list[int], seed: int
) -> None:
    shares = [weight / sum(weights) for weight in weights]
    parts = split_indices(length, shares, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * length) < 1 + 1e-6
        assert (np.diff(part) > 0).all()


def test_sizes_of_round_shares_are_exact() -> None:
    assert [len(part) for part in split_indices(1000, (0.7, 0.1, 0.2))] == [700, 100, 200]


def test_a_split_is_a_function_of_its_seed() -> None:
    def held_out(seed: int) -> list[int]:
        indices: list[int] = split_indices(1000, (0.9, 0.1), seed=seed)[1].tolist()
        return indices

    assert held_out(0) == held_out(0)
    chance = 100 * 0.1
    assert len(set(held_out(0)) & set(held_out(1))) < 3 * chance
    assert held_out(0) != list(range(900, 1000))


def test_no_global_generator_is_drawn_from() -> None:
    def draw(*, after_a_split: bool) -> list[float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        if after_a_split:
            split_indices(100, (0.5, 0.5))
        return [random.random(), float(np.random.rand()), torch.rand(()).item()]

    assert draw(after_a_split=True) == draw(after_a_split=False)


@pytest.mark.parametrize(
    ("length", "shares", "rule"),
    [
        (10, (0.5, 0.4), "sum to 1"),
        (10, (), "sum to 1"),
        (10, (1.0, 0.0), "needs a sample"),
        (10, (1.5, -0.5), "needs a sample"),
        (10, (0.99, 0.01), "needs a sample"),
        (0, (1.0,), "needs a sample"),
    ],
)
def test_shares_that_make_no_split_are_refused(
    length: int, shares: tuple[float, ...], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        split_indices(length, shares)
