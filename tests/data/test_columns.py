from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.columns import tensor_of_numbers
from lightning_recipes.data.padded import Padded

integers = st.integers(-(2**63), 2**63 - 1)
numbers = st.one_of(
    *(st.lists(kind, min_size=1) for kind in (integers, st.floats(), st.booleans()))
)


@pytest.fixture
def _default_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@given(numbers=numbers)
def test_numbers_become_the_tensor_that_torch_makes_of_them(numbers: list[Any]) -> None:
    tensor = tensor_of_numbers(numbers)
    assert tensor is not None
    torch.testing.assert_close(tensor, torch.tensor(numbers), rtol=0, atol=0, equal_nan=True)
    column = PadCollate()([numbers, numbers[:1]]).unpad()
    torch.testing.assert_close(column[0], tensor, rtol=0, atol=0, equal_nan=True)
    assert column[1].shape == (1,)


@pytest.mark.usefixtures("_default_float64")
def test_floats_are_of_the_default_dtype() -> None:
    assert PadCollate()([0.1, 0.2]).tolist() == [0.1, 0.2]
    assert PadCollate()([[0.1], [0.2]]).values.tolist() == [[0.1], [0.2]]


@pytest.mark.parametrize(
    "column", [[1, 2.5], [1, True], [np.int64(1), np.int64(2)], [2**63], ["1"], []]
)
def test_other_numbers_are_left_to_torch(column: list[Any]) -> None:
    assert tensor_of_numbers(column) is None


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (3, torch.tensor([3, 3])),
        (2.5, torch.tensor([2.5, 2.5])),
        (True, torch.tensor([True, True])),
        (np.float32(2.5), torch.tensor([2.5, 2.5])),
        (np.array(3), torch.tensor([3, 3])),
        (torch.tensor(3), torch.tensor([3, 3])),
        ("word", ["word", "word"]),
        (b"word", [b"word", b"word"]),
        (None, [None, None]),
    ],
)
def test_a_field_without_a_first_axis_gets_only_that_of_the_batch(
    field: Any, expected: Any
) -> None:
    batch = PadCollate()([field, field])
    if isinstance(expected, Tensor):
        torch.testing.assert_close(batch, expected)
    else:
        assert batch == expected


@pytest.mark.parametrize(
    "field",
    [
        [1, 2],
        np.array([1, 2]),
        torch.tensor([1, 2]),
        [np.int64(1), np.int64(2)],
        [torch.tensor(1), 2],
        range(1, 3),
    ],
)
def test_every_kind_of_sequence_is_padded_even_where_lengths_agree(field: Any) -> None:
    for samples in ([field, field], [field, [1, 2]]):
        padded = PadCollate()(samples)
        assert type(padded) is Padded
        assert padded.values.tolist() == [[1, 2], [1, 2]]
        assert padded.values.dtype == torch.int64
        assert padded.lengths.tolist() == [2, 2]


DTYPES = [
    *(torch.uint8, torch.bool, torch.int32, torch.int64, torch.uint16),
    *(torch.float16, torch.bfloat16, torch.float64, torch.complex64),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_dtypes_are_kept(dtype: torch.dtype, side: Any) -> None:
    collate = PadCollate(side=side, fixed=["1"], ragged_dims={"3": 2})
    pair, one = torch.ones(2, dtype=dtype), torch.ones((), dtype=dtype)
    samples = [(pair, pair, one, pair[:, None]), (pair[:1], pair, one, pair[None, :])]
    padded, fixed, number, image = collate(samples)
    assert {padded.values.dtype, fixed.dtype, number.dtype, image.values.dtype} == {dtype}
    assert padded.lengths.dtype == image.lengths.dtype == torch.int64


@pytest.mark.parametrize("pad_value", [0, 0.0])
@pytest.mark.parametrize("others", [[[1, 2]], [[1.5]], [[True]], [[[1, 2], [3, 4]]], [np.ones(2)]])
def test_an_empty_list_is_like_the_other_samples(others: list[Any], pad_value: float) -> None:
    collate = PadCollate(pad_value=pad_value)
    expected = torch.as_tensor(others[0])
    for samples, full in (([*others, []], 0), ([[], *others], 1)):
        sequences = collate(samples).unpad()
        torch.testing.assert_close(sequences[full], expected)
        assert sequences[1 - full].dtype == expected.dtype
        assert sequences[1 - full].shape == (0, *expected.shape[1:])


@pytest.mark.parametrize(
    ("pad_value", "dtype"), [(0, torch.int64), (0.0, torch.float32), (False, torch.bool)]
)
def test_lists_that_are_all_empty_are_like_their_pad_value(
    pad_value: float, dtype: torch.dtype
) -> None:
    batches: list[list[Any]] = [[[]], [[], []]]
    for samples in batches:
        padded = PadCollate(pad_value=pad_value)(samples)
        assert padded.values.dtype == dtype
        assert padded.values.shape == (len(samples), 1)
        image = PadCollate(pad_value=pad_value, ragged_dims={"": 2})(samples)
        assert image.values.shape == (len(samples), 1, 1)
        assert image.lengths.tolist() == [[0, 0]] * len(samples)


def test_an_empty_array_has_a_dtype_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"one dtype in field 'a'.*int64, sample 1 has .*float64"):
        PadCollate()([{"a": [1]}, {"a": np.array([])}])


def test_arrays_may_be_read_only_and_are_left_alone() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    padded = PadCollate()([array, array[:1]])
    padded.values.add_(1)
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_a_batch_shares_no_memory_with_its_samples(make: Any) -> None:
    fields = make([0, 1, 2]), make([[0, 1, 2]]), make([0, 1, 2])
    collate = PadCollate(ragged_dims={"1": 2}, fixed=["2"])
    sequence, image, fixed = collate([fields])
    for tensor in (sequence.values, image.values, fixed):
        tensor.add_(1)
    assert [field.tolist() for field in fields] == [[0, 1, 2], [[0, 1, 2]], [0, 1, 2]]


def test_arrays_may_be_flipped_views() -> None:
    array = np.flip(np.arange(3))
    assert PadCollate()([array]).values.tolist() == [[2, 1, 0]]


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ([[1], 1], "one rank in field 'a'.* first of the batch has 1, sample 1 has 0.* list of"),
        ([1, [1]], "one rank in field 'a'.* first of the batch has 0, sample 1 has 1"),
        ([np.ones(2), np.ones((2, 1))], "one rank in field 'a'.* has 1, sample 1 has 2"),
        ([[1], [1], [1.0]], "one dtype in field 'a'.*int64, sample 2 has torch.float32"),
        ([[1], [True]], "one dtype in field 'a'.*int64, sample 1 has torch.bool"),
        ([1, 1.0], "one dtype in field 'a'.*int64, sample 1 has torch.float32"),
        ([torch.ones(1), torch.ones(1).half()], "one dtype in field 'a'.*sample 1 .*float16"),
        ([[1], [2**63]], "field 'a' is a list in sample 1 .*Overflow"),
        ([1, 2**70], "field 'a' is a int in sample 1 .*Overflow"),
        ([np.ones(2), None], "field 'a' is a NoneType in sample 1"),
        ([[1], ["word"]], "field 'a' is a list in sample 1"),
        ([[[1], [2, 3]]], "field 'a' is a list in sample 0"),
        ([np.array(["word"])], "field 'a' is a ndarray in sample 0"),
        ([object()], "field 'a' is a object in sample 0"),
        (["word", None], "one type in field 'a'.*'str'>, sample 1 has .*NoneType"),
        ([torch.ones(2).to_sparse()], "dense tensors; field 'a'"),
    ],
)
def test_values_that_do_not_go_together_are_refused(column: list[Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PadCollate()([{"a": field} for field in column])
