import enum
import io
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from lightning_recipes import LeftPadded, Padded
from lightning_recipes.nonfinite.plain import from_plain, num_bytes, to_plain


class Pair(NamedTuple):
    one: Any
    two: Any


class Colour(enum.IntEnum):
    RED = 1


@dataclass(frozen=True)
class Sample:
    x: Tensor
    rest: Any = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.x.numel())
        built.append(self.size)


class Tagged(Tensor):
    """As data sets of images have them."""


class Names(list[str]):
    """A list of their own."""


built: list[int] = []


def through_a_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(to_plain(value), buffer)
    buffer.seek(0)
    return from_plain(torch.load(buffer, weights_only=True))


def test_named_types_come_back_as_they_were() -> None:
    values, lengths = torch.rand(2, 3), torch.tensor([3, 1])
    batch = {
        "padded": LeftPadded(values, lengths),
        "nested": [(Padded(values, lengths), None), {"flag": True, 3: "three"}],
        "pair": Pair(1.5, Sample(values, rest=[Pair(1, 2)])),
    }
    other = through_a_file(batch)
    assert type(other["padded"]) is LeftPadded
    assert torch.equal(other["padded"].mask, batch["padded"].mask)  # type: ignore[attr-defined]
    assert type(other["nested"][0]) is tuple
    assert type(other["nested"][0][0]) is Padded
    assert other["nested"][0][1] is None
    assert other["nested"][1] == {"flag": True, 3: "three"}
    assert other["pair"].one == 1.5
    sample = other["pair"].two
    assert type(sample) is Sample
    assert torch.equal(sample.x, values)
    assert (sample.rest, sample.size) == ([Pair(1, 2)], 6)


def test_a_dataclass_is_put_together_without_its_code() -> None:
    plain = to_plain(Sample(torch.ones(2)))
    built.clear()
    assert from_plain(plain).size == 2
    assert built == []


def test_a_packed_sequence_comes_back() -> None:
    packed = pack_padded_sequence(torch.rand(2, 3, 1), torch.tensor([3, 1]), batch_first=True)
    other = through_a_file(packed)
    assert isinstance(other, PackedSequence)
    assert torch.equal(other.data, packed.data)
    assert torch.equal(other.batch_sizes, packed.batch_sizes)


def test_types_of_their_own_become_plain() -> None:
    batch: dict[Any, Any] = {
        "numpy": np.float64(0.5),
        "enum": Colour.RED,
        "tagged": torch.ones(2).as_subclass(Tagged),
        "names": Names(["a"]),
        "size": torch.Size([2, 3]),
        "parameter": torch.nn.Parameter(torch.ones(1)),
        "dicts": [OrderedDict(a=1), defaultdict(list, b=2)],
        Colour.RED: 0,
    }
    other = through_a_file(batch)
    assert other == {
        **batch,
        "tagged": other["tagged"],
        "parameter": torch.ones(1),
        "names": ["a"],
        "size": (2, 3),
    }
    assert type(other["numpy"]) is float
    assert type(other["tagged"]) is Tensor


def test_a_part_of_a_tensor_is_not_kept_with_the_whole() -> None:
    whole = torch.arange(100_000.0)
    plain = to_plain({"part": whole[10:12]})
    assert plain["part"].tolist() == [10.0, 11.0]
    assert plain["part"].untyped_storage().nbytes() == num_bytes(plain) == 8
    whole.zero_()
    assert plain["part"].tolist() == [10.0, 11.0]


@pytest.mark.parametrize("value", [np.ones(2), {1, 2}, object(), lambda: None, b"bytes"])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(value).__name__} is no plain type"):
        to_plain({"deep": [value]})


@pytest.mark.parametrize(
    "name", ["os:system", "no.such.module:Thing", "builtins:dict", "builtins:tuple"]
)
def test_nothing_else_is_called(name: str) -> None:
    with pytest.raises(ValueError, match="Import that module first"):
        from_plain({"__type__": name, "__fields__": {}})


def test_the_memory_of_all_tensors() -> None:
    batch = to_plain([{"a": torch.ones(3)}, Pair(torch.ones(2, dtype=torch.float64), "text")])
    assert num_bytes(batch) == 3 * 4 + 2 * 8
