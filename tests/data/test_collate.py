import dataclasses
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.padded import LeftPadded, Padded

ragged = st.tuples(
    st.lists(st.integers(1, 7), min_size=1, max_size=5), st.sampled_from([(), (2,), (2, 3)])
).map(lambda drawn: [torch.randn(length, *drawn[1]) for length in drawn[0]])


@given(tensors=ragged, pad_value=st.integers(-9, 9), multiple=st.integers(1, 5))
def test_right_padding_is_that_of_torch(
    tensors: list[Tensor], pad_value: int, multiple: int
) -> None:
    collate = PadCollate(pad_value=pad_value, pad_to_multiple_of=multiple)
    padded = collate(tensors)
    values, lengths = padded
    expected = pad_sequence(tensors, batch_first=True, padding_value=pad_value)
    longest = expected.shape[1]
    assert type(padded) is Padded
    assert torch.equal(values[:, :longest], expected)
    assert (values[:, longest:] == pad_value).all()
    assert longest <= values.shape[1] < longest + multiple
    assert values.shape[1] % multiple == 0
    assert lengths.tolist() == list(map(len, tensors))


@given(tensors=ragged, pad_value=st.integers(-9, 9), multiple=st.integers(1, 5))
def test_left_padding_is_right_padding_seen_in_a_mirror(
    tensors: list[Tensor], pad_value: int, multiple: int
) -> None:
    right = PadCollate(pad_value=pad_value, pad_to_multiple_of=multiple)
    left = PadCollate(pad_value=pad_value, pad_to_multiple_of=multiple, side="left")
    mirrored, padded = right([tensor.flip(0) for tensor in tensors]), left(tensors)
    assert type(padded) is LeftPadded
    assert torch.equal(padded.values, mirrored.values.flip(1))
    assert torch.equal(padded.mask, mirrored.mask.flip(1))
    assert torch.equal(padded.lengths, mirrored.lengths)


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), multiple=st.integers(1, 5))
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_mask_is_true_where_a_value_is_real(
    side: Any, lengths: list[int], multiple: int
) -> None:
    collate = PadCollate(side=side, pad_to_multiple_of=multiple)
    padded = collate([torch.ones(length) for length in lengths])
    assert padded.mask.dtype == torch.bool
    assert torch.equal(padded.mask, padded.values == 1)
    assert padded.mask.sum() == sum(lengths)


class Note(NamedTuple):
    tokens: Any
    author: Any


@dataclasses.dataclass
class Sample:
    notes: Any
    image: Any


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
    "field", [[1, 2], np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), np.int64(2)]]
)
def test_every_kind_of_sequence_is_padded_even_where_lengths_agree(field: Any) -> None:
    padded = PadCollate()([field, field])
    assert type(padded) is Padded
    assert padded.values.tolist() == [[1, 2], [1, 2]]
    assert padded.lengths.tolist() == [2, 2]


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.int32, torch.int64, torch.float16, torch.float64]
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_dtypes_are_kept(dtype: torch.dtype, side: Any) -> None:
    collate = PadCollate(side=side, fixed=["1"])
    pair, one = torch.ones(2, dtype=dtype), torch.ones((), dtype=dtype)
    padded, fixed, number = collate([(pair, pair, one), (pair[:1], pair, one)])
    assert padded.values.dtype == fixed.dtype == number.dtype == dtype
    assert padded.lengths.dtype == torch.int64


def test_read_only_arrays_are_taken_and_left_alone() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    padded = PadCollate()([array, array[:1]])
    padded.values.add_(1)
    assert array.tolist() == [0, 1, 2]


def test_each_field_has_its_own_pad_value() -> None:
    collate = PadCollate(pad_value={"labels": -100, "meta.0": 9})
    long = {"labels": [1, 2], "tokens": [1, 2], "meta": ([1, 2],)}
    short = {"labels": [1], "tokens": [1], "meta": ([1],)}
    batch = collate([long, short])
    assert batch["labels"].values.tolist() == [[1, 2], [1, -100]]
    assert batch["tokens"].values.tolist() == [[1, 2], [1, 0]]
    assert batch["meta"][0].values.tolist() == [[1, 2], [1, 9]]


def test_the_longest_allowed_sequence_is_taken() -> None:
    assert PadCollate(max_length=3)([[1, 2, 3]]).values.shape == (1, 3)


@pytest.mark.parametrize(
    ("pad_value", "dtype"),
    [
        (-100, torch.uint8),
        (256, torch.uint8),
        (2, torch.bool),
        (0.5, torch.int64),
        (float("nan"), torch.int32),
        (float("inf"), torch.int32),
        (1e6, torch.float16),
    ],
)
def test_a_pad_value_outside_the_dtype_is_refused(pad_value: float, dtype: torch.dtype) -> None:
    field = torch.ones(2, dtype=dtype)
    with pytest.raises(ValueError, match=rf"{dtype} of field 'a\.b'"):
        PadCollate(pad_value={"a.b": pad_value})([{"a": {"b": field}}])


@pytest.mark.parametrize("pad_value", [float("nan"), float("-inf"), 65504, -0.5])
def test_a_pad_value_inside_the_dtype_is_taken(pad_value: float) -> None:
    values = PadCollate(pad_value=pad_value)([torch.ones(n).half() for n in (1, 2)]).values
    torch.testing.assert_close(values[0, 1].item(), float(pad_value), equal_nan=True)


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ([], "empty batch"),
        ([{"a": [1]}, {"a": [1, 2, 3, 4]}], "max_length=3 .* 4 in field 'a'"),
        ([{"a": [1], "b": 1}, {"a": [1]}], r"\('a', 'b'\) in the sample; sample 1 .*\('a',\)"),
        ([{"a": [1]}, {"a": [1], "b": 1}], r"\('a',\) in the sample; sample 1 .*\('a', 'b'\)"),
        ([{"a": {"b": 1}}, {"a": {"c": 1}}], r"\('b',\) in field 'a'; sample 1 .*\('c',\)"),
        ([(1, 2), (1,)], "sample 1 .* tuple of 1 fields"),
        ([{"a": (1,)}, {"a": 1}], "field 'a'; sample 1 .* int"),
        ([{"a": 1}, {"a": (1,)}], "field 'a'"),
        ([{"a": np.ones(2)}, {"a": np.ones((2, 1))}], "field 'a'.*sample 1"),
        ([{"a": np.ones((2, 1))}, {"a": np.ones((2, 3))}], "field 'a'.*sample 1"),
        ([{"a": [1]}, {"a": 1}], "field 'a'.*sample 1"),
        ([{"a": [1]}, {"a": [1.0]}], "field 'a'.*int64.*sample 1.*float32"),
        ([{"a": "word"}, {"a": None}], "field 'a'.*sample 1"),
        ([{"a": np.ones(2)}, {"a": None}], "field 'a'"),
        ([{"a": ["words"]}], "field 'a' is a list"),
        ([{"a": object()}], "field 'a' is a object"),
    ],
)
def test_a_bad_batch_is_refused_and_its_field_named(samples: list[Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PadCollate(max_length=3)(samples)


def test_fixed_fields_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"field 'image'.*sample 1"):
        PadCollate(fixed=["image"])([{"image": [1, 2]}, {"image": [1]}])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of .* got 0"),
        ({"max_length": -1}, "max_length .* got -1"),
        ({"side": "top"}, "side .* got 'top'"),
        ({"fixed": "image"}, "fixed .* 'image'"),
    ],
)
def test_an_argument_out_of_range_is_refused(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PadCollate(**arguments)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_survives_pickling_and_a_device(side: Any) -> None:
    padded = PadCollate(side=side)([[1, 2, 3], [4]])
    copy = pickle.loads(pickle.dumps(padded))
    assert type(copy) is type(padded)
    assert torch.equal(copy.values, padded.values)
    assert torch.equal(copy.mask, padded.mask)

    moved = move_data_to_device({"x": padded}, torch.device("meta"))["x"]
    assert type(moved) is type(padded)
    assert moved.values.is_meta
    assert moved.mask.is_meta
    assert moved.mask.shape == (2, 3)


def test_a_collate_function_travels_to_a_worker() -> None:
    collate = pickle.loads(pickle.dumps(PadCollate(pad_value={"a": -1}, side="left")))
    assert collate([{"a": [1, 2]}, {"a": [1]}])["a"].values.tolist() == [[1, 2], [-1, 1]]


def test_a_name_that_no_sample_has_is_refused() -> None:
    for collate in (PadCollate(pad_value={"label": -100}), PadCollate(fixed=["label"])):
        with pytest.raises(ValueError, match=r"\['labels'\], got \['label'\]"):
            collate([{"labels": [1, 2]}])


def test_arrays_may_be_flipped_views() -> None:
    array = np.flip(np.arange(3))
    assert PadCollate()([array]).values.tolist() == [[2, 1, 0]]
