import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_recipes import CachedDataset, ResumableDataLoader, preserve_rng, sample_seed
from lightning_recipes.data.sample import first_difference
from lightning_recipes.rng import capture_rng_state

Draw = Callable[[], float]


class Slow(Dataset[dict[str, Any]]):
    """Counts its loads; a sample has 8,000 bytes of numbers."""

    def __init__(self, draw: Draw = lambda: 0.0) -> None:
        self.draw = draw
        self.loads: list[int] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert type(index) is int
        self.loads.append(index)
        return {"index": index, "values": torch.full((1000,), index + self.draw()).double()}


class Augmented(Dataset[Tensor]):
    """Adds noise in place, to a few values."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tensor:
        values: Tensor = self.dataset[index]["values"][:4]
        noise = [random.random(), np.random.random(), torch.rand(()).item(), sample_seed() % 99]  # noqa: NPY002
        return values.add_(torch.tensor(noise))


def batches(dataset: Any, num_workers: int) -> list[list[list[float]]]:
    loader = ResumableDataLoader(
        dataset, 2, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    return [[batch.tolist() for batch in loader] for _ in range(3)]


def test_every_sample_is_loaded_once_and_then_comes_from_memory() -> None:
    slow = Slow()
    cached = CachedDataset(slow, max_bytes=10**6, num_checks=2)
    for _ in range(3):
        for i in (3, 0, 5, -1):
            sample = cached[i]
            assert sample["index"] == i % 6
            assert torch.equal(sample["values"], torch.full((1000,), i % 6).double())
    assert slow.loads == [3, 3, 0, 0, 5]
    assert len(cached) == 6
    with pytest.raises(IndexError):
        cached[6]


def test_nothing_is_kept_beyond_the_limit() -> None:
    slow = Slow()
    cached = CachedDataset(slow, max_bytes=30_000, num_checks=0)
    for _ in range(2):
        for i in range(6):
            assert cached[i]["index"] == i
            assert cached.num_bytes <= 30_000
    assert slow.loads == [0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert cached.num_bytes > 3 * 8000


@pytest.mark.parametrize("max_bytes", [1, 10**6])
def test_changing_a_sample_in_place_changes_no_later_one(max_bytes: int) -> None:
    source = [{"values": torch.zeros(3)}]
    cached: Any = CachedDataset(source, max_bytes=max_bytes)  # type: ignore[arg-type]
    for _ in range(3):
        sample = cached[0]
        assert sample["values"].tolist() == [0, 0, 0]
        sample["values"] += 1
        sample["more"] = 1
    assert source[0]["values"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("max_bytes", [1, 30_000, 10**6])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_augmentation_above_is_that_without_a_cache(max_bytes: int, num_workers: int) -> None:
    plain = batches(Augmented(Slow()), 0)
    assert plain[0] != plain[1]
    assert batches(Augmented(CachedDataset(Slow(), max_bytes=max_bytes)), num_workers) == plain


@pytest.mark.parametrize("max_bytes", [1, 30_000, 10**6])
def test_a_data_set_that_draws_without_effect_changes_nothing_above(max_bytes: int) -> None:
    quiet, busy = Slow(), Slow(lambda: 0 * (random.random() + np.random.random()))  # noqa: NPY002
    with preserve_rng():
        expected = batches(Augmented(CachedDataset(quiet, max_bytes=max_bytes)), 0)
        assert batches(Augmented(CachedDataset(busy, max_bytes=max_bytes)), 0) == expected


def test_loading_leaves_the_generators_alone() -> None:
    cached = CachedDataset(Slow(lambda: 0 * torch.rand(()).item()), max_bytes=10**6)
    before = capture_rng_state()
    for _ in range(2):
        cached[0]
        assert first_difference(capture_rng_state(), before) is None


private = random.Random(3)


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        np.random.random,
        lambda: torch.rand(()).item(),
        lambda: np.random.default_rng(sample_seed()).random(),
        private.random,
    ],
    ids=["python", "numpy", "torch", "sample_seed", "private"],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_random_samples_are_refused_by_index_and_field(draw: Draw, num_workers: int) -> None:
    cached = CachedDataset(Slow(draw), max_bytes=10**6)
    message = r"two loads of sample 4 differ in field 'values'\. Cache below, augment above"
    with preserve_rng(), pytest.raises(ValueError, match=message):
        cached[4]
    with pytest.raises(ValueError, match="two loads of sample 0 differ"):
        list(ResumableDataLoader(cached, 2, num_workers=num_workers))
    assert cached.num_bytes == 0


def test_what_uses_its_memory_again_is_still_found_to_be_random() -> None:
    class Reused(Dataset[Tensor]):
        buffer = torch.empty(3)

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Tensor:
            return self.buffer.copy_(torch.rand(3))

    with pytest.raises(ValueError, match=r"two loads of sample 0 differ\. Cache"):
        CachedDataset(Reused(), max_bytes=10**6)[0]


def test_only_the_first_samples_are_checked() -> None:
    draws = iter([0.0, 0.0, 0.0, 0.0, 1.0, 2.0])
    cached = CachedDataset(Slow(lambda: next(draws)), max_bytes=10**6, num_checks=2)
    assert [cached[i]["values"][0].item() for i in (0, 1, 2)] == [0, 1, 3]
    unchecked = CachedDataset(Slow(lambda: torch.rand(()).item()), max_bytes=1, num_checks=0)
    assert torch.equal(unchecked[0]["values"], unchecked[0]["values"])  # seeded by its index


def test_a_copy_for_another_process_starts_empty() -> None:
    samples: Any = [torch.zeros(100_000)]
    cached = CachedDataset(samples, max_bytes=10**6)
    cached[0]
    pickled = pickle.dumps(cached)
    assert len(pickled) < len(pickle.dumps(samples)) + 1000
    other = pickle.loads(pickled)
    assert (other.num_bytes, other.max_bytes, other.num_checks) == (0, 10**6, 16)
    assert torch.equal(other[0], cached[0])
    assert other.num_bytes == cached.num_bytes > 400_000


def test_none_is_a_sample_too() -> None:
    loads: list[int] = []

    class Nothing(Dataset[None]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> None:
            loads.append(index)

    cached = CachedDataset(Nothing(), max_bytes=100, num_checks=0)
    for _ in range(2):
        cached[0]
    assert loads == [0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_bytes": 0}, "^max_bytes is an integer >= 1, got 0"),
        ({"max_bytes": 1e9}, r"^max_bytes .*, got 1000000000\.0"),
        ({"max_bytes": True}, "^max_bytes .*, got True"),
        ({"max_bytes": 1, "num_checks": -1}, "^num_checks is an integer >= 0, got -1"),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CachedDataset(Slow(), **arguments)
