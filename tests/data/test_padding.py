from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.padded import LeftPadded, Padded

SIDES = {"right": Padded, "left": LeftPadded}

ragged = st.tuples(
    st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any),
    st.sampled_from([(), (2,), (2, 3)]),
).map(lambda drawn: [torch.randn(length, *drawn[1]) for length in drawn[0]])

images = st.tuples(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    st.sampled_from([(), (3,)]),
).map(lambda drawn: [torch.randn(*size, *drawn[1]) for size in drawn[0]])


@given(tensors=ragged, pad_value=st.integers(-9, 9), multiple=st.integers(1, 5))
@pytest.mark.parametrize("side", SIDES)
def test_padding_is_that_of_torch(
    side: Any, tensors: list[Tensor], pad_value: int, multiple: int
) -> None:
    collate = PadCollate(pad_value=pad_value, pad_to_multiple_of=multiple, side=side)
    padded = collate(tensors)
    expected = pad_sequence(tensors, batch_first=True, padding_value=pad_value, padding_side=side)
    longest, num_steps = expected.shape[1], padded.values.shape[1]
    start = 0 if side == "right" else num_steps - longest
    is_of_torch = torch.zeros(num_steps, dtype=torch.bool)
    is_of_torch[start : start + longest] = True
    assert type(padded) is SIDES[side]
    assert torch.equal(padded.values[:, is_of_torch], expected)
    assert (padded.values[:, ~is_of_torch] == pad_value).all()
    assert longest <= num_steps < longest + multiple
    assert num_steps % multiple == 0
    assert padded.lengths.tolist() == list(map(len, tensors))
    assert padded.values.is_contiguous()


@given(images=images, pad_value=st.integers(-9, 9))
@pytest.mark.parametrize("side", SIDES)
def test_several_axes_are_padded_as_torch_pads_one_after_the_other(
    side: Any, images: list[Tensor], pad_value: int
) -> None:
    padded = PadCollate(pad_value=pad_value, side=side, ragged_dims={"": 2})(images)
    width = max(1, *(image.shape[1] for image in images))
    height = max(1, *(image.shape[0] for image in images))

    def pad_one(axis: Tensor, size: int) -> Tensor:
        full = torch.zeros(size, *axis.shape[1:])  # so that torch pads to this size
        return pad_sequence(
            [axis, full], batch_first=True, padding_value=pad_value, padding_side=side
        )[0]

    expected = [
        pad_one(pad_one(image.transpose(0, 1), width).transpose(0, 1), height) for image in images
    ]
    assert torch.equal(padded.values, torch.stack(expected))
    assert padded.lengths.tolist() == [list(image.shape[:2]) for image in images]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_one_ragged_axis_is_the_default(side: Any, make: Any) -> None:
    samples = [{"a": make([1, 2, 3])}, {"a": make([4])}]
    default, named = (PadCollate(side=side, ragged_dims=dims) for dims in (None, {"a": 1}))
    assert torch.equal(default(samples)["a"].values, named(samples)["a"].values)
    assert default(samples)["a"].lengths.shape == named(samples)["a"].lengths.shape == (2,)


@given(tensors=ragged, max_length=st.integers(1, 9))
@pytest.mark.parametrize(("side", "cut"), [("right", "beginning"), ("left", "end")])
def test_truncation_is_padding_of_what_python_slices(
    side: Any, cut: str, tensors: list[Tensor], max_length: int
) -> None:
    truncated = PadCollate(max_length=max_length, on_too_long="truncate", side=side)(tensors)
    kept = slice(max_length) if cut == "beginning" else slice(-max_length, None)
    expected = PadCollate(side=side)([tensor[kept] for tensor in tensors])
    assert torch.equal(truncated.values, expected.values)
    assert torch.equal(truncated.lengths, expected.lengths)


def test_truncation_goes_along_every_ragged_axis_and_no_other() -> None:
    image = torch.arange(2 * 3 * 4).view(2, 3, 4)
    for side, kept in (("right", image[:, :2]), ("left", image[:, -2:])):
        collate = PadCollate(
            max_length=2,
            on_too_long="truncate",
            side=side,  # type: ignore[arg-type]
            ragged_dims={"": 2},
        )
        padded = collate([image, image[:1, :1]])
        assert torch.equal(padded.unpad()[0], kept)
        assert padded.lengths.tolist() == [[2, 2], [1, 1]]


def test_each_field_has_its_own_longest_length() -> None:
    collate = PadCollate(max_length={"a": 1}, on_too_long="truncate")
    batch = collate([{"a": [1, 2, 3], "b": [1, 2, 3]}])
    assert batch["a"].values.tolist() == [[1]]
    assert batch["b"].values.tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match=r"max_length=1 .* sample 1 .* has 2 in field 'a'"):
        PadCollate(max_length={"a": 1})([{"a": [1]}, {"a": [1, 2]}])


def test_the_longest_allowed_sequence_is_taken() -> None:
    assert PadCollate(max_length=3)([[1, 2, 3]]).values.shape == (1, 3)


def test_a_length_is_compared_before_rounding_up() -> None:
    collate = PadCollate(max_length=3, pad_to_multiple_of=8)
    assert collate([[1, 2, 3]]).values.shape == (1, 8)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", [(), (2,), (0,)])
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("lengths", [[0], [0, 0], [0, 3], [3, 0, 1], [3], [3, 3]])
def test_the_structure_of_a_batch_does_not_depend_on_its_lengths(
    side: Any, shape: tuple[int, ...], multiple: int, lengths: list[int]
) -> None:
    collate = PadCollate(side=side, pad_to_multiple_of=multiple)
    tensors = [torch.ones(length, *shape, dtype=torch.float64) for length in lengths]
    padded = collate([{"a": tensor} for tensor in tensors])["a"]
    assert type(padded) is SIDES[side]
    assert padded.values.dtype == torch.float64
    num_steps = multiple if multiple > 1 else max(*lengths, 1)
    assert padded.values.shape == (len(lengths), num_steps, *shape)
    assert padded.lengths.tolist() == lengths
    assert padded.mask.sum(dim=1).tolist() == lengths


def test_samples_may_have_a_gradient() -> None:
    samples = [torch.ones(3, requires_grad=True), torch.ones(1, requires_grad=True)]
    PadCollate(pad_value=5)(samples).values.pow(2).sum().backward()
    assert [sample.grad.tolist() for sample in samples if sample.grad is not None] == [[2] * 3, [2]]


@pytest.mark.parametrize(
    ("pad_value", "dtype"),
    [
        (-100, torch.uint8),
        (256, torch.uint8),
        (2, torch.bool),
        (0.5, torch.int64),
        (2**63, torch.int64),
        (float("nan"), torch.int32),
        (float("inf"), torch.int32),
        (1e6, torch.float16),
    ],
)
def test_a_pad_value_outside_the_dtype_is_refused(pad_value: float, dtype: torch.dtype) -> None:
    field = torch.ones(2, dtype=dtype)
    with pytest.raises(ValueError, match=rf"value {pad_value} .*{dtype} of field 'a\.b'"):
        PadCollate(pad_value={"a.b": pad_value})([{"a": {"b": field}}])


@pytest.mark.parametrize("pad_value", [float("nan"), float("-inf"), 65504, -0.5])
def test_a_pad_value_inside_the_dtype_is_taken(pad_value: float) -> None:
    values = PadCollate(pad_value=pad_value)([torch.ones(n).half() for n in (1, 2)]).values
    torch.testing.assert_close(values[0, 1].item(), float(pad_value), equal_nan=True)


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ([np.ones((2, 1)), np.ones((2, 3))], r"field 'a'.*\(1,\), sample 1 has \(3,\).*ragged"),
        ([[[1]], [[1, 2]]], r"field 'a'.*\(1,\), sample 1 has \(2,\)"),
        ([np.ones((1, 1)), np.ones((2, 4))], "max_length=3 .* sample 1 .* 4 in field 'image'"),
        ([np.ones(2)], r"2 axes are ragged in field 'image', .* \(2,\)"),
        ([1], r"2 axes are ragged in field 'image', .* \(\)"),
        ([np.ones((1, 1, 1)), np.ones((2, 2, 2))], r"'image'.*\(1,\), sample 1 has \(2,\)"),
    ],
)
def test_axes_that_cannot_be_padded_are_refused(column: list[Any], complaint: str) -> None:
    name = "image" if "image" in complaint else "a"
    collate = PadCollate(max_length=3, ragged_dims={"image": 2} if name == "image" else None)
    with pytest.raises(ValueError, match=complaint):
        collate([{name: field} for field in column])
