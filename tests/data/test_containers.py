import dataclasses
from collections import OrderedDict
from functools import cached_property
from typing import Any, NamedTuple

import pytest
import torch

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.padded import Padded


class Note(NamedTuple):
    tokens: Any
    author: Any


@dataclasses.dataclass
class Sample:
    notes: Any
    image: Any


@dataclasses.dataclass(frozen=True)
class Text:
    tokens: Any
    language: str

    def __post_init__(self) -> None:
        if not isinstance(self.language, str):
            raise TypeError("one sample has one language")

    @cached_property
    def length(self) -> int:
        return len(self.tokens)


def _sample(length: int) -> dict[str, Any]:
    note = Note(torch.full((length,), length), f"author {length}")
    return {"sample": Sample((note, length / 2), torch.ones(3, 2)), "id": length}


def test_nested_containers_come_back_as_they_were() -> None:
    batch = PadCollate(fixed=["sample.image"])([_sample(2), _sample(1)])
    assert type(batch) is dict
    assert list(batch) == ["sample", "id"]
    assert type(batch["sample"]) is Sample
    assert type(batch["sample"].notes) is tuple
    note, scores = batch["sample"].notes
    assert type(note) is Note
    assert type(note.tokens) is Padded
    assert note.tokens.values.tolist() == [[2, 2], [1, 0]]
    assert note.author == ["author 2", "author 1"]
    assert scores.tolist() == [1.0, 0.5]
    assert batch["sample"].image.shape == (2, 3, 2)
    assert batch["id"].tolist() == [2, 1]


def test_keyword_only_dataclasses_come_back_as_they_were() -> None:
    Point = dataclasses.make_dataclass("Point", ["x"], kw_only=True)  # noqa: N806
    assert PadCollate()([Point(x=1), Point(x=2)]).x.tolist() == [1, 2]


def test_a_dataclass_of_a_batch_is_not_checked_as_a_sample_and_remembers_nothing_of_one() -> None:
    samples = [Text([1, 2, 3], "en"), Text([1], "de")]
    assert samples[0].length == 3
    batch = PadCollate()(samples)
    assert type(batch) is Text
    language: Any = batch.language
    assert language == ["en", "de"]
    assert batch.length == len(batch.tokens)
    assert samples[0].tokens == [1, 2, 3]


def test_mappings_of_one_type_may_order_their_keys_as_they_like() -> None:
    batch = PadCollate()([OrderedDict(a=1, b=2), OrderedDict(b=4, a=3)])
    assert {name: column.tolist() for name, column in batch.items()} == {"a": [1, 3], "b": [2, 4]}
    with pytest.raises(ValueError, match=r"OrderedDict .*sample 1 .* a dict"):
        PadCollate()([OrderedDict(a=1), {"a": 1}])


def test_containers_of_different_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a Text in field 'a'; sample 2 of the batch is a Sample"):
        PadCollate()([{"a": Text(1, "en")}] * 2 + [{"a": Sample(1, 2)}])
    with pytest.raises(ValueError, match=r"a Note of 2 fields .*; sample 1 .* a tuple of 2 fields"):
        PadCollate()([Note(1, 2), (1, 2)])


@pytest.mark.parametrize("empty", [{}, ()])
def test_a_container_may_be_empty(empty: Any) -> None:
    assert PadCollate()([{"a": empty}, {"a": empty}]) == {"a": empty}


def test_keys_need_not_be_strings() -> None:
    batch = PadCollate(pad_value={"3.x.": 7})([{3: {"x.": [1, 2]}}, {3: {"x.": [1]}}])
    assert batch[3]["x."].values.tolist() == [[1, 2], [1, 7]]
