from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lightning_recipes.data.sample import copy_sample, first_difference, sample_bytes


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Record:
    name: str
    payload: Any


numbers = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)
numpy_arrays = arrays(
    st.sampled_from([np.int64, np.float32, np.bool_, np.complex64]),
    array_shapes(min_dims=0, max_dims=2, max_side=3),
)
leaves = st.one_of(numbers, numpy_arrays, numpy_arrays.map(lambda a: torch.from_numpy(a.copy())))
samples = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Record, st.text(max_size=2), inner),
    ),
    max_leaves=6,
)


@given(samples)
def test_a_copy_is_the_same_and_of_the_same_kind(sample: Any) -> None:
    copy = copy_sample(sample)
    assert first_difference(sample, copy) is None
    assert type(copy) is type(sample)
    assert sample_bytes(copy) > 0


def test_a_copy_shares_nothing_that_can_be_changed() -> None:
    tensor, array = torch.zeros(3), np.zeros(3)
    sample: dict[str, Any] = {"a": [tensor, Pair(array, 1)], "b": Record("x", (tensor[1:],))}
    copy = copy_sample(sample)
    copy["a"][0] += 1
    copy["a"][1].left[:] = 1
    copy["b"].payload[0].fill_(2)
    copy["a"].append(0)
    assert not tensor.any()
    assert not array.any()
    assert len(sample["a"]) == 2


def test_a_copy_of_a_view_takes_the_memory_of_the_view() -> None:
    row = copy_sample(torch.zeros(1000, 10)[3])
    assert row.untyped_storage().nbytes() == 40
    column = copy_sample(torch.zeros(10).expand(1000, 10))
    assert column.untyped_storage().nbytes() == sample_bytes(column) - 512 == 40_000


def test_bytes_are_those_of_the_numbers_and_a_little_for_each_object() -> None:
    values = np.zeros(1000)
    flat = 8000
    samples: list[Any] = [
        values,
        torch.from_numpy(values),
        [values],
        {"a": (values, 3)},
        Pair(None, Record("", values)),
        bytes(8000),
        "x" * 8000,
        {"a": {"b": {"c": ["y" * 8000]}}},
    ]
    for sample in samples:
        assert flat < sample_bytes(sample) < flat + 1000
    many = [torch.zeros(10, dtype=torch.float64) for _ in range(100)]
    assert 100 * 80 < sample_bytes(many) < 100 * 80 + 100 * 700


@pytest.mark.parametrize(
    ("one", "two", "path"),
    [
        (1, 2, ""),
        (1, 1.0, ""),
        ("a", b"a", ""),
        (0, None, ""),
        ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3]}, "b.1"),
        ({"a": 1}, {"b": 1}, "a"),
        ([1], [1, 2], "1"),
        ([1, 2], [1], "1"),
        (Pair(1, {"x": 2}), Pair(1, {"x": 3}), "right.x"),
        (Record("a", 1), Record("a", 2), "payload"),
        (torch.zeros(2), torch.tensor([0.0, 1e-30]), ""),
        (torch.zeros(2), torch.zeros(2, 1), ""),
        (torch.zeros(2), torch.zeros(2).int(), ""),
        (torch.zeros(2), np.zeros(2, np.float32), ""),
        (np.zeros(2), np.array([0.0, 1e-300]), ""),
        (np.zeros(4, np.int16), np.zeros(2, np.int32), ""),
    ],
)
def test_the_first_difference_is_found_by_path(one: Any, two: Any, path: str) -> None:
    assert first_difference(one, two) == path


def test_what_is_not_a_number_is_like_itself() -> None:
    nan = float("nan")
    sample = [nan, torch.tensor([nan, 1.0]), np.array([nan]), np.float32(nan)]
    assert first_difference(sample, [float("nan"), *copy_sample(sample)[1:]]) is None


def test_layout_makes_no_difference() -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    assert first_difference(matrix, matrix.t().contiguous().t()) is None
    half = matrix.to(torch.bfloat16)
    assert first_difference(half, half.clone()) is None
    assert copy_sample(OrderedDict(a=1)) == {"a": 1}


@pytest.mark.parametrize("sample", [object(), {1, 2}, np.array([None]), torch.eye(2).to_sparse()])
def test_what_cannot_be_copied_or_counted_is_refused_by_name(sample: Any) -> None:
    with pytest.raises(TypeError, match=r"field 'a\.1' is a \w+\. Convert it in the data set"):
        copy_sample({"a": (0, sample)})
    with pytest.raises(TypeError, match="the sample is a"):
        copy_sample(sample)
