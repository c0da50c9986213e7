import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from lightning_recipes.data.order import Indices, UniformOrder, permute, share
from lightning_recipes.rng import derive_seed


@settings(max_examples=40)
@given(length=st.integers(1, 10**5), seed=st.integers(0, 2**63 - 1))
@example(length=1, seed=0)
@example(length=2, seed=0)
@example(length=9, seed=0)
@example(length=10**5, seed=0)
def test_permute_sends_no_two_positions_to_one_place(length: int, seed: int) -> None:
    order = permute(np.arange(length), length, seed=seed)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(length))


def test_permute_takes_any_shape_and_any_order_of_positions() -> None:
    order = permute(np.arange(12), 12, seed=3)
    backwards = np.arange(12)[::-1].reshape(3, 4)
    assert np.array_equal(permute(backwards, 12, seed=3), order[backwards])
    assert np.array_equal(permute(np.array([5, 5]), 12, seed=3), order[[5, 5]])


@pytest.mark.parametrize("length", [2, 3, 5, 10, 97])
def test_the_first_sample_is_uniform_over_seeds(length: int) -> None:
    first = [permute(np.array([0]), length, seed=seed)[0] for seed in range(20 * length)]
    assert stats.chisquare(np.bincount(first, minlength=length)).pvalue > 1e-3


def test_every_value_is_as_likely_at_every_position() -> None:
    orders = _orders(length=5, num=2000)
    for values in orders.T:
        assert stats.chisquare(np.bincount(values, minlength=5)).pvalue > 1e-3


@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_every_order_of_a_few_samples_is_as_likely(length: int) -> None:
    num = max(2400, 10 * math.factorial(length))
    orders = Counter(map(tuple, _orders(length=length, num=num).tolist()))
    counts = [orders[order] for order in itertools.permutations(range(length))]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_neighbours_in_a_large_data_set_are_strangers_in_the_order() -> None:
    length, num = 10**9, 4096
    values = permute(np.arange(num) + 10**8, length, seed=1)
    assert stats.kstest(values / length, "uniform").pvalue > 1e-3
    assert abs(stats.spearmanr(values[:-1], values[1:]).statistic) < 4 / num**0.5
    assert abs(stats.spearmanr(np.arange(num), values).statistic) < 4 / num**0.5


def test_a_batch_costs_the_memory_of_a_batch() -> None:
    order = UniformOrder(num_samples=10**9, batch_size=256, shuffle=True)
    tracemalloc.start()
    try:
        order.batch(0, 3_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_any_batch_of_the_largest_data_set_is_at_hand() -> None:
    order = UniformOrder(num_samples=10**18, batch_size=1000, shuffle=True)
    batches = np.concatenate([order.batch(7, k) for k in (0, 10**14, len(order) - 1)])
    assert len(set(batches.tolist())) == 3000
    assert 0 <= batches.min() < batches.max() < 10**18


@given(
    num_samples=st.integers(1, 500),
    batch_size=st.integers(1, 60),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_the_batches_of_an_epoch_hold_every_sample_once(
    num_samples: int, batch_size: int, seed: int, epoch: int, shuffle: bool, drop_last: bool
) -> None:
    order = UniformOrder(
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
    )
    whole, rest = divmod(num_samples, batch_size)
    sizes = [batch_size] * whole + ([rest] if rest and not drop_last else [])
    batches = [order.batch(epoch, k) for k in range(len(order))]
    assert [len(batch) for batch in batches] == sizes
    assert [order.size(0, k) for k in range(len(order))] == sizes

    seen = [index for batch in batches for index in batch.tolist()]
    assert len(set(seen)) == len(seen) == sum(sizes)
    assert set(seen) <= set(range(num_samples))
    assert shuffle or seen == list(range(sum(sizes)))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def epoch(number: int, seed: int) -> tuple[int, ...]:
        order = UniformOrder(num_samples=50, batch_size=50, seed=seed, shuffle=True)
        return tuple(order.batch(number, 0).tolist())

    points = list(itertools.product(range(10), range(10)))
    assert len({epoch(*point) for point in points}) == len(points)
    assert [epoch(*point) for point in points] == [epoch(*point) for point in points]


def test_a_batch_does_not_depend_on_how_the_epoch_is_cut() -> None:
    fine = UniformOrder(num_samples=100, batch_size=4, seed=1, shuffle=True)
    coarse = UniformOrder(num_samples=100, batch_size=8, seed=1, shuffle=True)
    assert np.array_equal(coarse.batch(2, 3), np.concatenate([fine.batch(2, 6), fine.batch(2, 7)]))


@given(size=st.integers(0, 300), world_size=st.integers(1, 40))
def test_ranks_share_a_batch_evenly_and_in_order(size: int, world_size: int) -> None:
    shares = [share(size, rank, world_size) for rank in range(world_size)]
    assert list(itertools.chain(*shares)) == list(range(size))
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1
    assert (0 in sizes) == (size < world_size)


def _orders(*, length: int, num: int) -> Indices:
    return np.stack(
        [permute(np.arange(length), length, seed=derive_seed(0, epoch)) for epoch in range(num)]
    )
