import pickle
import random
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_recipes import derive_seed, preserve_rng, sample_seed, seed_worker
from lightning_recipes.data.seeding import SampleIndex, SeededDataset

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
        return SeededDataset(Draws(), seed=seed)[SampleIndex(index, epoch)].tolist()


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


def test_index_is_an_int_that_keeps_its_epoch_on_the_way_to_a_worker() -> None:
    index = pickle.loads(pickle.dumps(SampleIndex(7, 3)))
    assert (index, index.epoch, [*"abcdefgh"][index]) == (7, 3, "h")


def test_a_plain_index_belongs_to_epoch_0() -> None:
    with preserve_rng():
        assert SeededDataset(Draws(), seed=5)[2].tolist() == load(5, 0, 2)


def test_sample_seed_is_only_known_while_a_sample_is_loaded() -> None:
    with preserve_rng(), pytest.raises(OSError, match="unreadable"):
        SeededDataset(Broken())[0]
    with pytest.raises(RuntimeError, match="inside a data set's __getitem__"):
        sample_seed()


class WorkerDraws(Draws):
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(
            [random.random(), np.random.random(), torch.rand(()).item()],  # noqa: NPY002
            dtype=torch.float64,
        )


def test_seed_worker_tells_ranks_workers_seeds_and_epochs_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draw() -> list[list[float]]:
        rows = []
        for rank, seed in product((0, 1), (0, 1)):
            monkeypatch.setenv("RANK", str(rank))
            loader = DataLoader(
                WorkerDraws(),
                batch_size=2,
                num_workers=2,
                worker_init_fn=seed_worker,
                generator=torch.Generator().manual_seed(seed),
            )
            rows += [row for _ in range(2) for batch in loader for row in batch.tolist()]
        return rows

    rows = draw()
    # 2 ranks x 2 seeds x 2 epochs x 2 workers x 2 samples
    assert [len(set(library)) for library in zip(*rows, strict=True)] == [32, 32, 32]
    assert draw() == rows
