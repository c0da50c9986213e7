import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_recipes import (
    CachedDataset,
    NamesDataModule,
    PadCollate,
    ResumableDataLoader,
    SequenceDataset,
    lengths_of,
    sample_seed,
)
from lightning_recipes.data import lengths as room


class Samples(Dataset[Any]):
    """Gives out what it was given, and counts how often."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples
        self.num_loads = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.num_loads += 1
        return self.samples[index]


class WithLengths(Samples):
    """Knows its lengths, and cannot be loaded."""

    def __init__(self, lengths: Any) -> None:
        super().__init__([None] * len(lengths))
        self.lengths = lengths

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("loaded")


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=6))
def test_lengths_are_those_that_collating_finds(sequences: list[list[int]]) -> None:
    samples = [{"id": i, "s": "abc", "tokens": tokens} for i, tokens in enumerate(sequences)]
    collated = PadCollate()(samples)
    expected = collated["tokens"].lengths.tolist()
    for dataset in (Samples(samples), SequenceDataset.from_sequences(sequences)):
        lengths = lengths_of(dataset)
        assert lengths.dtype == np.int64
        assert lengths.tolist() == expected


@pytest.mark.parametrize(
    "lengths", [[3, 1, 2], np.array([3, 1, 2], np.uint8), torch.tensor([3, 1, 2])]
)
def test_known_lengths_are_found_inside(lengths: Any) -> None:
    dataset = WithLengths(lengths)
    assert lengths_of(dataset).tolist() == [3, 1, 2]
    assert lengths_of(Subset(dataset, [2, 0, 0])).tolist() == [2, 3, 3]
    assert lengths_of(Subset(dataset, range(2))).tolist() == [3, 1]
    assert lengths_of(Subset(Subset(dataset, [2, 0]), [1])).tolist() == [3]
    assert lengths_of(Subset(dataset, [])).tolist() == []
    assert lengths_of(ConcatDataset([dataset, Subset(dataset, [1])])).tolist() == [3, 1, 2, 1]
    assert lengths_of(CachedDataset(dataset, max_bytes=1)).tolist() == [3, 1, 2]
    assert lengths_of(ResumableDataLoader(dataset).dataset).tolist() == [3, 1, 2]


def test_what_is_not_known_everywhere_is_measured() -> None:
    known, unknown = SequenceDataset.from_sequences([[1, 2], [3]]), Samples([[4, 5, 6]])
    assert lengths_of(ConcatDataset([known, unknown])).tolist() == [2, 1, 3]
    assert lengths_of(CachedDataset(unknown, max_bytes=10**6)).tolist() == [3]


def test_a_subset_loads_its_own_samples_only() -> None:
    dataset = Samples([[0] * n for n in range(10)])
    assert lengths_of(Subset(dataset, [7, 2])).tolist() == [7, 2]
    assert dataset.num_loads == 2


def test_a_subset_that_loads_in_its_own_way_is_measured() -> None:
    class Doubled(Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            return self.dataset[self.indices[index]].repeat(2)

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    assert lengths_of(Doubled(SequenceDataset.from_sequences([[1], [2, 3]]), [1])).tolist() == [4]


def test_measuring_happens_once_per_field_and_data_set() -> None:
    dataset = Samples([{"a": [1, 2], "b": (0, torch.ones(3, 2))}])
    for _ in range(3):
        assert lengths_of(dataset).tolist() == [2]
        assert lengths_of(dataset, field="b.1").tolist() == [3]
    assert dataset.num_loads == 2
    dataset.samples.append({"a": [1], "b": (0, torch.ones(1))})
    assert lengths_of(dataset).tolist() == [2, 1]
    assert lengths_of(Samples([[1]])).tolist() == [1]


def test_what_was_measured_is_forgotten_with_the_data_set() -> None:
    before = len(room._measured)
    dataset = Samples([[1]])
    lengths_of(dataset)
    assert len(room._measured) == before + 1
    del dataset
    gc.collect()
    assert len(room._measured) == before


@pytest.mark.parametrize("dataset", [Samples([[1, 2]]), WithLengths([2])])
def test_what_is_kept_cannot_be_changed(dataset: Any) -> None:
    with pytest.raises(ValueError, match="read-only"):
        lengths_of(dataset)[0] = 7
    assert lengths_of(dataset).tolist() == [2]


def test_a_field_is_measured_even_where_lengths_are_known() -> None:
    dataset = SequenceDataset.from_sequences([[1], [2, 3]], labels=torch.zeros(2, 5))
    assert lengths_of(dataset).tolist() == [1, 2]
    assert lengths_of(dataset, field="0").tolist() == [1, 2]
    assert lengths_of(dataset, field="1").tolist() == [5, 5]


def test_the_names_offer_theirs_without_a_sample_being_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = NamesDataModule()
    data.setup("fit")
    assert data.train_set is not None
    first = [len(data.train_set[i][0]) for i in range(50)]
    monkeypatch.setattr(SequenceDataset, "__getitem__", None)
    lengths = lengths_of(data.train_set)
    assert lengths[:50].tolist() == first
    assert (len(lengths), lengths.min()) == (len(data.train_set), 2)  # type: ignore[arg-type]


def test_random_lengths_are_the_same_on_every_rank_and_draw_from_no_generator() -> None:
    class Crops(Samples):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(random.randint(1, 9) + int(torch.randint(9, ())) + sample_seed() % 9)

    def measure() -> list[int]:
        lengths: list[int] = lengths_of(Crops([None] * 20)).tolist()
        return lengths

    random.seed(0)
    first = measure()
    assert random.random() == random.Random(0).random()
    random.seed(1)
    assert measure() == first
    assert len(set(first)) > 3


@pytest.mark.parametrize(
    ("samples", "field", "message"),
    [
        ([{"id": 1, "s": "abc"}], None, r"sample 0 has the fields \['id', 's'\], but one is not"),
        ([{"a": [1]}, {"b": [1]}], None, r"sample 1 has the fields \['b'\], but 'a'"),
        ([{"a": [1]}, {"a": 1}], None, "sample 1 .* 'a' is not there or has no axis"),
        ([{"a": [1]}], "b", r"sample 0 has the fields \['a'\], but 'b'"),
        ([torch.tensor(1)], None, r"sample 0 has the fields \[''\], but one"),
        ([{"a": "abc"}], "a", "'a' is not there or has no axis"),
    ],
)
def test_a_sample_without_a_length_is_refused(samples: Any, field: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lengths_of(Samples(samples), field=field)


@pytest.mark.parametrize("lengths", [[1.0], [-1], [True], [[1]], ["a"]])
def test_lengths_that_are_none_are_refused(lengths: Any) -> None:
    with pytest.raises(ValueError, match=r"\.lengths of a data set .* from a WithLengths of 1\."):
        lengths_of(WithLengths(lengths))
    dataset = WithLengths([1, 2])
    dataset.lengths = [1]
    with pytest.raises(ValueError, match="one integer >= 0 per sample"):
        lengths_of(dataset)


def test_a_bar_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths_of(Samples([[1]]))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    lengths_of(Samples([[1]]))
    out, err = capsys.readouterr()
    assert out == ""
    assert "Measuring the lengths" in err


def test_a_list_has_lengths_too() -> None:
    samples: Any = [(0, torch.ones(3)), (1, torch.ones(1))]
    for _ in range(2):
        assert lengths_of(samples).tolist() == [3, 1]


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    yield
    room._measured.clear()
