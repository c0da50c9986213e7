import itertools
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_recipes import ResumableDataLoader, resumable


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


DATA = Numbers()


def ids(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_sequential_loader_gives_the_same_batches() -> None:
    plain: DataLoader[int] = DataLoader(DATA, batch_size=4)
    assert ids(resumable(plain)) == ids(plain)


def test_shuffled_loader_stays_shuffled_and_can_go_on() -> None:
    loader = resumable(DataLoader(DATA, batch_size=4, shuffle=True), seed=3)
    epochs = ids(loader), ids(loader)
    assert epochs[0] != epochs[1]
    assert sorted(itertools.chain(*epochs[0])) == list(range(10))
    resumed = resumable(DataLoader(DATA, batch_size=4, shuffle=True), seed=3)
    resumed.load_state_dict({**resumed.state_dict(), "batch": 2})
    assert ids(resumed) == epochs[0][2:]


def test_everything_else_is_kept() -> None:
    collate = itemgetter(0)
    plain: DataLoader[int] = DataLoader(
        DATA, batch_size=4, drop_last=True, collate_fn=collate, num_workers=2, prefetch_factor=3
    )
    loader = resumable(plain)
    assert isinstance(loader, ResumableDataLoader)
    for name in ("batch_size", "drop_last", "collate_fn", "num_workers", "prefetch_factor"):
        assert getattr(loader, name) == getattr(plain, name), name
    assert loader.dataset.dataset is DATA  # type: ignore[attr-defined]


def test_a_resumable_loader_is_left_alone() -> None:
    loader = ResumableDataLoader(DATA, 4)
    assert resumable(loader) is loader


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_loader_keeps_its_shuffling(shuffle: bool) -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, 2, 0, shuffle=shuffle)
    assert resumable(DataLoader(DATA, 2, sampler=sampler)).shuffle is shuffle


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)), "WeightedRandomSampler"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "RandomSampler"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=5)), "RandomSampler"),
        (DataLoader(DATA, batch_size=None), "batch_size=None"),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2]]), "list"),
    ],
)
def test_an_order_of_its_own_is_refused_by_name(loader: DataLoader[Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        resumable(loader)


def test_a_stream_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"Stream.*StatefulDataLoader"):
        resumable(DataLoader(Stream()))
