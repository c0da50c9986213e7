import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_recipes.data.bucket_order import BucketOrder
from lightning_recipes.data.length_buckets import LengthBuckets
from lightning_recipes.data.order import Indices, share

Options = dict[str, Any]

LONGEST = 12
plans = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, LONGEST), min_size=1, max_size=60),
        "max_tokens": st.none() | st.integers(LONGEST, 40),
        "window": st.integers(1, 4),
        "longest_first": st.booleans(),
    }
)
loaders = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 5),
        "world_size": st.integers(1, 4),
        "seed": st.integers(0, 3),
        "shuffle": st.booleans(),
    }
)


def make(plan: Options, loader: Options) -> BucketOrder:
    plan = dict(plan)
    return LengthBuckets(plan.pop("lengths"), **plan).order(**loader)


def shares(batch: Indices, world_size: int) -> list[list[int]]:
    cuts = [share(len(batch), rank, world_size) for rank in range(world_size)]
    return [batch[cut.start : cut.stop].tolist() for cut in cuts]


@given(plans, loaders, st.integers(0, 3))
def test_every_sample_comes_once_in_every_epoch(plan: Options, loader: Options, epoch: int) -> None:
    order = make(plan, loader)
    batches = [order.batch(epoch, k) for k in range(len(order))]
    assert sorted(np.concatenate(batches)) == list(range(len(plan["lengths"])))
    assert [len(batch) for batch in batches] == [order.size(epoch, k) for k in range(len(order))]


@given(plans, loaders)
def test_all_ranks_have_samples_but_for_one_batch(plan: Options, loader: Options) -> None:
    order = make(plan, loader)
    short = [k for k in range(len(order)) if order.size(0, k) < loader["world_size"]]
    assert len(short) <= 1


@given(plans, loaders, st.integers(0, 3))
def test_a_batch_keeps_to_its_size_or_budget(plan: Options, loader: Options, epoch: int) -> None:
    order, lengths = make(plan, loader), np.array(plan["lengths"])
    for k in range(len(order)):
        for mine in shares(order.batch(epoch, k), loader["world_size"]):
            if plan["max_tokens"] is None:
                assert len(mine) <= loader["batch_size"]
            elif mine:
                assert len(mine) * max(lengths[mine]) <= plan["max_tokens"]


@given(plans, loaders, st.integers(0, 3))
def test_a_batch_draws_from_few_neighbours(plan: Options, loader: Options, epoch: int) -> None:
    """Between its longest and shortest lie at most a bucket's samples, by counting."""
    plan = {**plan, "max_tokens": None}
    order, lengths = make(plan, loader), np.array(plan["lengths"])
    most = plan["window"] * loader["batch_size"] * loader["world_size"]
    for k in range(len(order)):
        batch = lengths[order.batch(epoch, k)]
        assert ((lengths > batch.min()) & (lengths < batch.max())).sum() <= most


@given(plans, loaders)
def test_without_a_budget_only_the_shortest_make_small_batches(
    plan: Options, loader: Options
) -> None:
    plan = {**plan, "max_tokens": None}
    order = make(plan, {**loader, "shuffle": False})
    sizes = [order.size(0, k) for k in range(len(order))]
    full = loader["batch_size"] * loader["world_size"]
    assert len(sizes) == math.ceil(len(plan["lengths"]) / full)
    assert all(size == full for size in sizes[: -plan["window"]])


@given(plans, loaders, st.integers(0, 3))
def test_the_longest_batch_comes_first(plan: Options, loader: Options, epoch: int) -> None:
    lengths = np.array(plan["lengths"])
    order = make({**plan, "longest_first": True}, loader)
    assert lengths[order.batch(epoch, 0)].max() == lengths.max()


@given(st.integers(2, 4), st.integers(1, 8), st.integers(0, 5))
def test_ranks_get_similar_token_counts(world_size: int, batch_size: int, epoch: int) -> None:
    generator = np.random.default_rng(0)
    lengths = np.exp(generator.normal(4, 0.8, 200)).astype(int)
    order = LengthBuckets(lengths).order(batch_size=batch_size, world_size=world_size, shuffle=True)
    for k in range(len(order)):
        batch = order.batch(epoch, k)
        if len(batch) % world_size == 0:
            counts = [lengths[mine].sum() for mine in shares(batch, world_size)]
            # dealt back and forth, two hands differ by less than one longest card
            assert max(counts) - min(counts) <= lengths[batch].max() - lengths[batch].min()


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_are_dealt_to_back_and_forth(world_size: int) -> None:
    """Always dealt to in one order, the first rank has the longest sample of every round."""
    lengths = np.exp(np.random.default_rng(0).normal(4, 0.8, 640)).astype(int)
    order = LengthBuckets(lengths).order(batch_size=8, world_size=world_size, shuffle=True)
    ours, one_way = 0, 0
    for k in range(len(order)):
        batch = order.batch(0, k)
        counts = [lengths[mine].sum() for mine in shares(batch, world_size)]
        rounds = np.sort(lengths[batch])[::-1].reshape(8, world_size).sum(axis=0)
        ours += max(counts) - min(counts)
        one_way += rounds.max() - rounds.min()
    assert ours < 0.6 * one_way


def test_epochs_and_seeds_differ_in_batches_and_their_order() -> None:
    lengths = np.arange(256) // 8
    buckets = LengthBuckets(lengths)
    seen = Counter(
        tuple(sorted(order.batch(epoch, k).tolist()))
        for seed in range(3)
        for order in [buckets.order(batch_size=8, world_size=1, seed=seed, shuffle=True)]
        for epoch in range(3)
        for k in range(len(order))
    )
    assert max(seen.values()) == 1
    order = buckets.order(batch_size=8, world_size=1, shuffle=True)
    firsts = [lengths[order.batch(epoch, 0)].max() for epoch in range(20)]
    assert len(set(firsts)) > 5


def test_unshuffled_goes_from_the_longest_to_the_shortest() -> None:
    order = LengthBuckets([5, 1, 4, 2, 5, 1], window=1).order(batch_size=2, world_size=1)
    assert [order.batch(0, k).tolist() for k in range(3)] == [[0, 4], [2, 3], [1, 5]]


def test_pads_less_than_windows_of_the_shuffled_order() -> None:
    """As transformers groups by length: sorts each 50 batches of a shuffled epoch."""
    generator = np.random.default_rng(0)
    lengths = np.exp(generator.normal(4, 0.8, 20_000)).astype(int)
    order = LengthBuckets(lengths).order(batch_size=64, world_size=1, shuffle=True)
    ours = [order.batch(0, k) for k in range(len(order))]
    shuffled = generator.permutation(len(lengths))
    windows = [shuffled[i : i + 3_200] for i in range(0, len(lengths), 3_200)]
    ordered = np.concatenate([w[np.argsort(-lengths[w])] for w in windows])
    theirs = [ordered[i : i + 64] for i in range(0, len(ordered), 64)]

    def padded(batches: list[Indices]) -> int:
        return sum(len(batch) * int(lengths[batch].max()) for batch in batches)

    assert padded(ours) < padded(theirs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3, -1, 2]}, "length is >= 0, got -1 for sample 1"),
        ({"lengths": []}, "lengths are integers"),
        ({"lengths": [1.5, 2.0]}, "lengths are integers"),
        ({"lengths": [[1, 2]]}, "lengths are integers"),
        ({"lengths": [3, 9, 2], "max_tokens": 8}, "sample 1 has length 9"),
        ({"lengths": [3], "window": 0}, "window is a number of batches >= 1, got 0"),
    ],
)
def test_bad_arguments_name_the_rule(arguments: Options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LengthBuckets(**arguments)


def test_a_plan_is_known_by_everything_it_depends_on() -> None:
    plans = [
        LengthBuckets([1, 2, 3]),
        LengthBuckets([1, 3, 2]),
        LengthBuckets([1, 2, 3], max_tokens=4),
        LengthBuckets([1, 2, 3], window=2),
        LengthBuckets([1, 2, 3], longest_first=True),
    ]
    assert len({plan.identity for plan in plans}) == len(plans)
    assert LengthBuckets(np.array([1, 2, 3], dtype=np.int32)).identity == plans[0].identity
