import math
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.distributed import DistributedSampler

from lightning_recipes.data import order
from lightning_recipes.data.order import share
from lightning_recipes.data.sampler import BatchesOf, CoordinateSampler

sizes = st.tuples(st.integers(1, 40), st.integers(1, 7), st.integers(1, 6))


def make(
    size: tuple[int, int, int],
    rank: int,
    *,
    seed: int = 0,
    shuffle: bool = False,
    drop_last: bool = False,
) -> CoordinateSampler:
    num_samples, batch_size, world_size = size
    return CoordinateSampler(
        num_samples,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        rank=rank,
        world_size=world_size,
    )


def cut(sampler: CoordinateSampler) -> list[list[int]]:
    """Return the batches of an epoch, cut as torch's BatchSampler cuts them."""
    indices = [int(index) for index in sampler]
    return [indices[i : i + sampler.batch_size] for i in range(0, len(indices), sampler.batch_size)]


@given(sizes, st.booleans(), st.integers(0, 3))
def test_an_epoch_holds_every_sample_once_and_fillers(
    size: tuple[int, int, int], shuffle: bool, epoch: int
) -> None:
    num_samples, batch_size, world_size = size
    seen, lengths = [], set()
    for rank in range(world_size):
        sampler = make(size, rank, shuffle=shuffle)
        sampler.set_epoch(epoch)
        batches = cut(sampler)
        lengths.add(len(batches))
        assert len(sampler) == sum(map(len, batches))
        for k, batch in enumerate(batches):
            if sampler.is_filler(k):
                assert len(batch) == 1
            else:
                seen += batch
    assert sorted(seen) == list(range(num_samples))
    assert lengths == {math.ceil(num_samples / (batch_size * world_size))}


@given(sizes, st.booleans())
def test_drop_last_leaves_whole_batches_without_fillers(
    size: tuple[int, int, int], shuffle: bool
) -> None:
    num_samples, batch_size, world_size = size
    seen = []
    for rank in range(world_size):
        sampler = make(size, rank, shuffle=shuffle, drop_last=True)
        batches = cut(sampler)
        assert all(len(batch) == batch_size for batch in batches)
        assert not any(sampler.is_filler(k) for k in range(len(batches)))
        assert len(sampler) == sum(map(len, batches))
        seen += [index for batch in batches for index in batch]
    assert len(set(seen)) == len(seen) == num_samples - num_samples % (batch_size * world_size)


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 5))
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(
    num_samples: int, seed: int, epoch: int
) -> None:
    def global_batches(world_size: int) -> list[list[int]]:
        samplers = [
            make((num_samples, 8 // world_size, world_size), rank, seed=seed, shuffle=True)
            for rank in range(world_size)
        ]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        return [
            [
                index
                for sampler, batch in zip(samplers, batches, strict=True)
                if not sampler.is_filler(k)
                for index in batch
            ]
            for k, batches in enumerate(zip(*map(cut, samplers), strict=True))
        ]

    alone = global_batches(1)
    assert global_batches(2) == alone
    assert global_batches(4) == alone


@given(sizes)
def test_without_shuffle_the_ranks_one_after_the_other_are_the_data_set(
    size: tuple[int, int, int],
) -> None:
    num_samples, _, world_size = size
    samplers = [make(size, rank) for rank in range(world_size)]
    batches = [cut(sampler) for sampler in samplers]
    in_order = [
        index
        for k in range(len(batches[0]))
        for sampler, of_rank in zip(samplers, batches, strict=True)
        if not sampler.is_filler(k)
        for index in of_rank[k]
    ]
    assert in_order == list(range(num_samples))


def test_orders_differ_between_epochs_and_seeds() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        sampler = make((50, 5, 1), 0, seed=seed, shuffle=True)
        sampler.set_epoch(epoch)
        return tuple(sampler)

    assert len({order(seed, epoch) for seed in range(4) for epoch in range(4)}) == 16


def test_every_batch_carries_the_epoch_to_the_workers() -> None:
    sampler = make((5, 2, 1), 0)
    batches = BatchesOf(sampler)
    for epoch in (7, 8):
        sampler.set_epoch(epoch)
        assert [(batch.epoch, batch) for batch in batches] == [
            (epoch, [0, 1]),
            (epoch, [2, 3]),
            (epoch, [4]),
        ]


@given(
    st.tuples(st.integers(1, 300), st.integers(1, 30), st.integers(1, 4)),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_indices_computed_for_several_batches_at_once_are_those_of_each(
    size: tuple[int, int, int], shuffle: bool, drop_last: bool, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, size[2] - 1))
    sampler = make(size, rank, seed=3, shuffle=shuffle, drop_last=drop_last)
    batches = range(data.draw(st.integers(0, len(sampler.order))), len(sampler.order))
    expected = []
    for k in batches:
        batch = sampler.order.batch(5, k)
        mine = share(len(batch), rank, size[2]) or range(1)
        expected.append(batch[mine.start : mine.stop].tolist())
    with mock.patch.object(order, "_NUM_AT_ONCE", data.draw(st.integers(1, 100))):
        assert list(sampler.indices(5, batches)) == expected


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_lightnings_set_epoch_keeps_a_loaded_position_of_that_epoch_only(batch: int) -> None:
    sampler = make((9, 2, 1), 0)
    sampler.go_to(epoch=4, batch=batch, passes=0)
    sampler.set_epoch(4)
    sampler.begin()
    assert sampler.position() == {"epoch": 4, "batch": batch, "passes": 0}
    sampler.go_to(epoch=4, batch=batch, passes=0)
    sampler.set_epoch(5)
    sampler.begin()
    assert sampler.position() == {"epoch": 5, "batch": 0, "passes": 0}


def test_lightning_takes_it_for_a_distributed_sampler() -> None:
    assert isinstance(make((5, 2, 1), 0), DistributedSampler)


def test_alone_it_is_rank_0_of_1() -> None:
    sampler = CoordinateSampler(5, 2, seed=0, shuffle=False, drop_last=False)
    assert (sampler.rank, sampler.num_replicas) == (0, 1)
    assert cut(sampler) == [[0, 1], [2, 3], [4]]
