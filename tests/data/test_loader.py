import io
import math
import multiprocessing
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    default_collate,
)

from lightning_recipes import ResumableDataLoader, sample_seed, seed_worker
from tests.ranks import run_ranks

sizes = st.tuples(st.integers(1, 40), st.integers(1, 7), st.integers(1, 6))
each_kind_of_worker = pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["main process", "workers", "persistent workers"],
)


class Draws(Dataset[Tensor]):
    """A sample is its index, and what each kind of generator draws while it is loaded."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        held = np.random.default_rng(sample_seed())
        draws = [random.random(), np.random.random(), torch.rand(()).item(), held.random()]  # noqa: NPY002
        return torch.tensor([index, *draws], dtype=torch.float64)


class Counted(Draws):
    """Counts how often each sample is loaded, in any process."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.loads = torch.zeros(length, dtype=torch.int64)
        self.loads.share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: int) -> Tensor:
        self.loads[index] += 1
        return super().__getitem__(index)


class Broken(Draws):
    def __getitem__(self, index: int) -> Tensor:
        super().__getitem__(index)
        raise OSError("unreadable")


def add_noise(samples: list[Tensor]) -> Tensor:
    batch: Tensor = default_collate(samples)
    return batch + random.random() + np.random.random() + torch.rand(())  # noqa: NPY002


def collect(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def indices(batches: Any) -> list[list[int]]:
    return [batch[:, 0].int().tolist() for batch in batches]


def rows(*loaders: ResumableDataLoader) -> list[list[float]]:
    """Return all samples of an epoch, in order of their index."""
    return sorted(row for loader in loaders for batch in collect(loader) for row in batch)


def global_states() -> list[Any]:
    return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]  # noqa: NPY002


# --- augmentation ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_a_sample_is_augmented_alike_for_any_number_of_workers_and_ranks() -> None:
    def of(epoch: int, *loaders: ResumableDataLoader) -> list[list[float]]:
        for loader in loaders:
            loader.set_epoch(epoch)
        return rows(*loaders)

    epochs = []
    for epoch in (0, 3):
        alone = of(epoch, ResumableDataLoader(Draws(), 4, shuffle=True))
        for num_workers in (1, 4):
            loader = ResumableDataLoader(Draws(), 4, shuffle=True, num_workers=num_workers)
            assert of(epoch, loader) == alone
        ranks = [
            ResumableDataLoader(Draws(), 2, shuffle=True, rank=r, world_size=2) for r in range(2)
        ]
        assert of(epoch, *ranks) == alone
        epochs.append(alone)
    for one, other in zip(*epochs, strict=True):
        assert one[0] == other[0]
        assert all(a != b for a, b in zip(one[1:], other[1:], strict=True))


def _on_real_ranks(pickled_loader: bytes, state: dict[str, Any]) -> list[Any]:
    loader = pickle.loads(pickled_loader)
    fillers = [loader.is_filler(k) for k in range(len(loader))]
    whole = collect(loader)
    loader.load_state_dict(state)
    torch.manual_seed(0)
    seed_worker(0)
    return [fillers, whole, collect(loader), random.random()]


def test_real_ranks_share_the_batches_of_a_loader_made_before_the_process_group() -> None:
    alone = ResumableDataLoader(Draws(9), 4, shuffle=True)
    batches = iter(alone)
    first = next(batches).tolist()
    state = alone.state_dict()
    rest = collect(batches)

    made_here = pickle.dumps(ResumableDataLoader(Draws(9), 2, shuffle=True))
    one, two = run_ranks(_on_real_ranks, made_here, state)
    assert (one[0], two[0]) == ([False, False, True], [False, False, False])
    filler, last = one[1].pop(), two[1].pop()
    assert filler == last == rest[-1]
    assert [a + b for a, b in zip(one[1], two[1], strict=True)] == [first, *rest[:-1]]
    assert [a + b for a, b in zip(one[2][:1], two[2][:1], strict=True)] == rest[:1]
    assert (one[2][1:], two[2][1:]) == ([filler], [last])
    assert one[3] != two[3]  # seed_worker knows the rank


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_leaves_the_generators_of_the_main_process_alone(num_workers: int) -> None:
    before = global_states()
    loader = ResumableDataLoader(Draws(), 4, shuffle=True, num_workers=num_workers)
    for epoch in range(2):
        for _ in loader:
            assert global_states() == before, epoch
    with pytest.raises(OSError, match="unreadable") as error:
        list(ResumableDataLoader(Broken(), 4, num_workers=num_workers))
    # else it is a cycle, and torch takes 5 s for each worker of an iterator that is found in one
    error.value.__traceback__ = None
    del error
    assert global_states() == before


def test_what_the_model_draws_between_batches_does_not_reach_the_data() -> None:
    undisturbed = collect(ResumableDataLoader(Draws(), 4, shuffle=True))
    disturbed = []
    for batch in ResumableDataLoader(Draws(), 4, shuffle=True):
        disturbed.append(batch.tolist())
        torch.manual_seed(len(disturbed))
        random.seed(0)
    assert disturbed == undisturbed


def test_a_random_collate_fn_gives_the_same_batches_for_any_number_of_workers() -> None:
    one, two = (
        ResumableDataLoader(Draws(), 4, shuffle=True, collate_fn=add_noise, num_workers=workers)
        for workers in (0, 2)
    )
    assert collect(one) == collect(two)
    assert collect(one) == collect(two)


# --- epochs ---------------------------------------------------------------------------------------


@each_kind_of_worker
def test_a_plain_loop_reshuffles_like_set_epoch(workers: dict[str, Any]) -> None:
    plain = ResumableDataLoader(Draws(), 4, shuffle=True, **workers)
    first, second = collect(plain), collect(plain)
    assert [row[0] for batch in first for row in batch] != [
        row[0] for batch in second for row in batch
    ]
    other = ResumableDataLoader(Draws(), 4, shuffle=True, **workers)
    for epoch, expected in ((1, second), (0, first)):
        other.set_epoch(epoch)
        assert collect(other) == expected


@each_kind_of_worker
def test_an_epoch_left_early_starts_again(workers: dict[str, Any]) -> None:
    loader = ResumableDataLoader(Draws(), 4, shuffle=True, **workers)
    for batch in loader:
        first = batch.tolist()
        break
    again = collect(loader)
    assert again[0] == first
    assert again == collect(ResumableDataLoader(Draws(), 4, shuffle=True))


def test_no_worker_starts_before_the_first_batch_is_asked_for() -> None:
    loader = ResumableDataLoader(Counted(4), 2, num_workers=1)
    batches = iter(loader)
    assert not multiprocessing.active_children()
    loader.set_epoch(3)
    other = ResumableDataLoader(Draws(4), 2)
    other.set_epoch(3)
    assert collect(batches) == collect(other)


@given(sizes, st.booleans(), st.booleans())
def test_length_is_the_number_of_batches_and_fillers_are_the_only_repeats(
    size: tuple[int, int, int], shuffle: bool, drop_last: bool
) -> None:
    num_samples, batch_size, world_size = size
    kept = num_samples - num_samples % (batch_size * world_size) if drop_last else num_samples
    if not kept or (shuffle and num_samples < world_size):
        return  # an error, tested below
    seen = []
    for rank in range(world_size):
        loader = ResumableDataLoader(
            range(num_samples),  # type: ignore[arg-type]
            batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        batches = collect(loader)
        assert len(loader) == len(batches) == math.ceil(kept / (batch_size * world_size))
        seen += [i for k, batch in enumerate(batches) if not loader.is_filler(k) for i in batch]
    assert len(seen) == len(set(seen)) == kept


# --- resuming -------------------------------------------------------------------------------------


@each_kind_of_worker
def test_a_resumed_loader_yields_the_rest_and_loads_nothing_twice(workers: dict[str, Any]) -> None:
    def make(dataset: Dataset[Any]) -> ResumableDataLoader:
        return ResumableDataLoader(dataset, 2, shuffle=True, seed=3, **workers)

    uninterrupted = make(Draws(11))
    epochs = [collect(uninterrupted) for _ in range(3)]
    stopped = make(Draws(11))
    collect(stopped)
    for k, _ in enumerate(stopped, start=1):
        if k == 2:
            break
    buffer = io.BytesIO()
    torch.save(stopped.state_dict(), buffer)
    buffer.seek(0)

    dataset = Counted(11)
    resumed = make(dataset)
    batches = iter(resumed)  # Lightning's order: iter, load, set_epoch
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert collect(batches) == epochs[1][2:]
    rest = [int(row[0]) for batch in epochs[1][2:] for row in batch]
    assert dataset.loads.nonzero().flatten().tolist() == sorted(rest)
    assert dataset.loads.max() == 1
    assert collect(resumed) == epochs[2]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 2), st.data())
def test_any_position_can_be_resumed(
    num_samples: int, batch_size: int, epoch: int, data: st.DataObject
) -> None:
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(Draws(num_samples), batch_size, shuffle=True)

    loader = make()
    following = [batch for _ in range(5) for batch in collect(loader)]
    position = data.draw(st.integers(0, len(loader)))
    stopped = make()
    for _ in range(epoch):
        collect(stopped)
    batches = iter(stopped)
    for _ in range(position):
        next(batches)
    resumed = make()
    resumed.load_state_dict(stopped.state_dict())
    rest = collect(resumed) + collect(resumed)
    start = epoch * len(loader) + position
    assert rest == following[start : start + len(rest)]


def test_the_position_at_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    loader = ResumableDataLoader(Draws(), 4, shuffle=True)
    collect(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    # Lightning knows the length and asks for no batch after the last
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    resumed = ResumableDataLoader(Draws(), 4, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    expected = ResumableDataLoader(Draws(), 4, shuffle=True)
    expected.set_epoch(2)
    assert collect(resumed) == collect(expected)


def test_a_position_moves_between_numbers_of_ranks() -> None:
    alone = ResumableDataLoader(Draws(), 4, shuffle=True)
    batches = iter(alone)
    next(batches)
    ranks = [ResumableDataLoader(Draws(), 2, shuffle=True, rank=r, world_size=2) for r in range(2)]
    for loader in ranks:
        loader.load_state_dict(alone.state_dict())
    assert [a + b for a, b in zip(*map(collect, ranks), strict=True)] == collect(batches)


def test_an_epoch_of_a_billion_samples_starts_and_resumes_without_a_table() -> None:
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(range(10**9), 4, shuffle=True)  # type: ignore[arg-type]

    far = make()
    far.load_state_dict({**far.state_dict(), "epoch": 10**6, "batch": 200_000_000})
    drawn = [*next(iter(far)).tolist(), *next(iter(make())).tolist()]
    assert len(set(drawn)) == 8
    assert all(0 <= index < 10**9 for index in drawn)


@pytest.mark.parametrize(
    ("name", "saved", "ours"),
    [
        ("version", 1, 2),
        ("dataset_length", 13, 12),
        ("global_batch_size", 8, 4),
        ("seed", 7, 0),
        ("shuffle", False, True),
    ],
)
def test_a_position_in_other_data_is_refused_by_name(name: str, saved: Any, ours: Any) -> None:
    loader = ResumableDataLoader(Draws(12), 2, shuffle=True, rank=0, world_size=2)
    state = {**loader.state_dict(), name: saved}
    with pytest.raises(ValueError, match=rf"(?s){name}.*{saved}|{ours}.*{saved}") as error:
        loader.load_state_dict(state)
    assert str(ours) in str(error.value)
    assert str(saved) in str(error.value)


def test_a_strangers_state_is_refused() -> None:
    loader = ResumableDataLoader(Draws())
    state = loader.state_dict()
    del state["dataset_length"]
    for stranger in ({}, {"_snapshot": 3}, state):
        with pytest.raises(ValueError, match="saved by"):
            loader.load_state_dict(stranger)


# --- bad input ------------------------------------------------------------------------------------


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        ([], ValueError, "must not be empty, got a list of length 0"),
        (Subset(Draws(), []), ValueError, "must not be empty, got a Subset"),
        (NoLength(), TypeError, "with __len__, got NoLength"),
        (Stream(), TypeError, "iterable-style Stream"),
    ],
)
def test_an_unfit_data_set_is_refused(dataset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ResumableDataLoader(dataset)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size .*, got 0"),
        ({"batch_size": True}, ValueError, "batch_size .*, got True"),
        ({"batch_size": 2.0}, ValueError, r"batch_size .*, got 2\.0"),
        ({"batch_size": None}, ValueError, "batch_size .*, got None"),
        ({"seed": -1}, ValueError, "seed .*, got -1"),
        ({"seed": 1.5}, TypeError, r"seed .*, got 1\.5"),
        ({"seed": True}, TypeError, "seed .*, got True"),
        ({"seed": None}, TypeError, "seed .*, got None"),
        ({"rank": 0}, ValueError, "rank and world_size go together"),
        ({"world_size": 2}, ValueError, "rank and world_size go together"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank must be .*, got 2 of 2"),
        ({"rank": -1, "world_size": 2}, ValueError, r"rank must be .*, got -1 of 2"),
        ({"in_order": False, "num_workers": 1}, ValueError, "in_order=False"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"sampler": RandomSampler(Draws())}, ValueError, "own order, got .* RandomSampler"),
        (
            {"batch_sampler": BatchSampler(RandomSampler(Draws()), 2, False)},
            ValueError,
            "own order, got .* RandomSampler",
        ),
        ({"batch_sampler": [[0, 1], [2]]}, ValueError, "own order, got .*sampler list"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ResumableDataLoader(Draws(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 13, "drop_last": True}, "drop_last leaves no batch: 12 samples, 13"),
        ({"shuffle": True, "rank": 0, "world_size": 13}, "got 12 samples for 13 ranks"),
    ],
)
def test_too_little_data_for_a_batch_or_a_rank_is_an_error(
    arguments: dict[str, Any], message: str
) -> None:
    loader = ResumableDataLoader(Draws(), **arguments)
    for use in (len, list):
        with pytest.raises(ValueError, match=message):
            use(loader)
