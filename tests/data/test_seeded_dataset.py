import pickle
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from lightning_recipes import ResumableDataLoader, derive_seed, preserve_rng, sample_seed
from lightning_recipes.data.seeded_dataset import BatchIndices, SeededDataset

coordinates = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40))


class Draws(Dataset[Tensor]):
    """A sample is what python, numpy, torch and a held generator draw while it is loaded."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        held = np.random.default_rng(sample_seed())
        draws = [random.random(), np.random.random(), torch.rand(()).item(), held.random()]  # noqa: NPY002
        return torch.tensor(draws, dtype=torch.float64)


class Broken(Dataset[Tensor]):
    def __getitem__(self, index: int) -> Tensor:
        raise OSError("unreadable")


def load(seed: int, epoch: int, index: int) -> list[float]:
    with preserve_rng():
        (sample,) = SeededDataset(Draws(), seed=seed).__getitems__(BatchIndices([index], epoch))
    return sample.tolist()


@given(coordinates)
def test_every_generator_starts_from_the_coordinates(point: tuple[int, int, int]) -> None:
    python, _, from_torch, held = load(*point)
    seed = derive_seed(*point)
    assert python == random.Random(seed).random()
    assert from_torch == torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
    assert held == np.random.default_rng(seed).random()


@given(coordinates, coordinates)
def test_draws_differ_between_samples_epochs_seeds_and_libraries(
    one: tuple[int, int, int], two: tuple[int, int, int]
) -> None:
    assume(one != two)
    first, second = load(*one), load(*two)
    assert first == load(*one)
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert len(set(first)) == 4


def test_indices_are_a_list_that_keeps_its_epoch_on_the_way_to_a_worker() -> None:
    indices = pickle.loads(pickle.dumps(BatchIndices([7, 2], 3)))
    assert (indices, indices.epoch) == ([7, 2], 3)


def test_a_plain_index_belongs_to_epoch_0() -> None:
    with preserve_rng():
        assert SeededDataset(Draws(), seed=5)[2].tolist() == load(5, 0, 2)


def test_a_sample_that_cannot_be_loaded_leaves_no_seed_behind() -> None:
    with preserve_rng(), pytest.raises(OSError, match="unreadable"):
        SeededDataset(Broken())[0]
    with pytest.raises(RuntimeError, match="inside a data set's __getitem__"):
        sample_seed()


# --- seeds that are left out ----------------------------------------------------------------------

NUM_SAMPLES = 120
LATE = 90  # the first of the samples, in their order, that some kinds below draw for


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    with preserve_rng():
        yield


def _constant(index: int) -> float:
    return float(index)


def _late(index: int) -> float:
    return float(np.random.random()) if index >= LATE else 0.0  # noqa: NPY002


def _one_late_normal(index: int) -> float:
    return random.gauss(0, 1) if index == LATE else 0.0


def _asks_late(index: int) -> float:
    return float(sample_seed() % 1000) if index >= LATE else 0.0


def _puts_back(index: int) -> float:
    with torch.random.fork_rng():
        return torch.rand(()).item()


def _looks_only(index: int) -> float:
    return float(torch.initial_seed() % 1000)


def _seeds_late(index: int) -> float:
    if index >= LATE:
        torch.manual_seed(index)
    return torch.rand(()).item() if index > LATE else 0.0


def _fails_unless_seeded(index: int) -> float:
    own = [derive_seed(0, epoch, index) for epoch in range(2)]
    if index >= LATE and torch.initial_seed() not in own:
        raise OSError("another seed")
    return 0.0


KINDS = [
    *(_constant, _late, _one_late_normal, _asks_late),
    *(_puts_back, _looks_only, _seeds_late, _fails_unless_seeded),
]


class Made(Dataset[Tensor]):
    def __init__(self, make: Callable[[int], float]) -> None:
        self.make = make

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.make(index), dtype=torch.float64)


class MadeInBatches(Made):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[index] for index in indices]


def _noisy_collate(samples: list[Tensor]) -> Tensor:
    batch: Tensor = default_collate(samples)
    return batch + random.random() + np.random.random() + torch.rand(())  # noqa: NPY002


def _one_by_one(make: Callable[[int], float], epoch: int) -> list[float]:
    """Load the samples as the contract says: each with the generators freshly seeded."""
    rows: list[float] = []
    for index in range(NUM_SAMPLES):
        (sample,) = SeededDataset(Made(make)).__getitems__(BatchIndices([index], epoch))
        rows.append(sample.item())
    return rows


@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 0), (8, 0), (8, 1)])
@pytest.mark.parametrize("dataset", [Made, MadeInBatches])
@pytest.mark.parametrize("make", KINDS)
def test_a_sample_is_the_same_with_seeds_or_without(
    make: Callable[[int], float], dataset: type[Made], batch_size: int, num_workers: int
) -> None:
    loader = ResumableDataLoader(
        dataset(make), batch_size, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    for epoch in range(2):
        rows = [row for batch in loader for row in batch.tolist()]
        assert rows == _one_by_one(make, epoch)


def test_a_collate_fn_that_draws_gets_the_seeds_of_the_last_sample() -> None:
    expected = []
    for last in range(7, NUM_SAMPLES, 8):
        SeededDataset(Made(_constant))[last]
        expected.append(_noisy_collate([torch.tensor(0.0, dtype=torch.float64)]).item())
    loader = ResumableDataLoader(Made(_constant), 8, collate_fn=_noisy_collate)
    assert [batch[0].item() - 8 * k for k, batch in enumerate(loader)] == pytest.approx(
        expected, abs=1e-9
    )


class Recorded(Dataset[int]):
    """Says which torch seed each sample was loaded with, in the order of the loads."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.seeds: list[int] = []

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        self.seeds.append(torch.initial_seed())
        return index


def test_quick_samples_are_proven_in_the_first_batches_and_then_not_seeded() -> None:
    recorded = Recorded()
    seeded = SeededDataset(recorded)
    for start in range(0, 80, 16):
        assert seeded.__getitems__(range(start, start + 16)) == list(range(start, start + 16))
    twice, once = recorded.seeds[:64], recorded.seeds[64:]
    own = {derive_seed(0, 0, index) for index in range(80)}
    assert len(own & set(twice)) == 32
    assert len(once) == 48
    assert len(set(once[-16:])) == 1


def test_slow_samples_are_loaded_once_and_always_seeded() -> None:
    recorded = Recorded(seconds=0.001)
    seeded = SeededDataset(recorded)
    for start in range(0, 80, 16):
        seeded.__getitems__(range(start, start + 16))
    assert recorded.seeds == [derive_seed(0, 0, index) for index in range(80)]


def test_a_sample_that_cannot_be_compared_is_always_seeded() -> None:
    class Opaque(Recorded):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            return object()

    opaque = Opaque()
    seeded: SeededDataset[Any] = SeededDataset(opaque)
    for start in range(0, 80, 16):
        seeded.__getitems__(range(start, start + 16))
    assert opaque.seeds == [derive_seed(0, 0, index) for index in range(80)]
