import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.padded import LeftPadded, Padded

SIDES = ["right", "left"]
lengths = st.lists(st.integers(0, 7), min_size=1, max_size=5)
sizes = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=4)


def _rows(values: list[list[float]], lengths: list[int], kind: type[Padded] = Padded) -> Padded:
    return kind(torch.tensor(values), torch.tensor(lengths))


@given(lengths=lengths, multiple=st.integers(1, 5))
@pytest.mark.parametrize("side", SIDES)
def test_the_mask_is_true_where_a_value_is_real(
    side: Any, lengths: list[int], multiple: int
) -> None:
    collate = PadCollate(side=side, pad_to_multiple_of=multiple)
    padded = collate([torch.ones(length) for length in lengths])
    assert padded.mask.dtype == torch.bool
    assert torch.equal(padded.mask, padded.values == 1)
    assert padded.mask.sum() == sum(lengths)


@given(sizes=sizes, num_ragged=st.integers(2, 3))
@pytest.mark.parametrize("side", SIDES)
def test_the_mask_of_several_axes_is_true_where_a_value_is_real(
    side: Any, sizes: list[tuple[int, ...]], num_ragged: int
) -> None:
    ragged = [size[:num_ragged] for size in sizes]
    collate = PadCollate(side=side, ragged_dims={"": num_ragged})
    padded = collate([torch.ones(*size, 2) for size in ragged])
    assert torch.equal(padded.mask, padded.values[..., 0] == 1)
    assert padded.lengths.shape == (len(sizes), num_ragged)
    assert padded.mask.sum() == padded.lengths.prod(dim=1).sum()


def test_the_mask_of_no_sequences_is_empty() -> None:
    assert Padded(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).mask.shape == (0, 3)
    assert Padded(torch.zeros(0, 3, 2), torch.zeros(0, 2, dtype=torch.int64)).mask.shape == (
        0,
        3,
        2,
    )
    assert Padded(torch.zeros(2, 0), torch.zeros(2, dtype=torch.int64)).mask.shape == (2, 0)


@given(lengths=lengths)
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("side", SIDES)
def test_a_nested_tensor_has_the_sequences_and_only_them(
    side: Any, shape: tuple[int, ...], lengths: list[int]
) -> None:
    tensors = [torch.randn(length, *shape) for length in lengths]
    padded = PadCollate(side=side, pad_value=9)(tensors)
    nested = padded.to_nested()
    assert nested.layout == torch.jagged
    assert nested.values().shape == (sum(lengths), *shape)
    for sequence, tensor, view in zip(nested.unbind(), tensors, padded.unpad(), strict=True):
        assert torch.equal(sequence, tensor)
        assert torch.equal(view, tensor)
    again = PadCollate(side=side, pad_value=9)(list(nested.unbind()))
    assert torch.equal(again.values, padded.values)


def test_a_nested_tensor_passes_gradients_to_what_is_real() -> None:
    padded = PadCollate(side="left")([[1.0, 2.0, 3.0], [4.0]])
    values = padded.values.requires_grad_()
    (padded._replace(values=values).to_nested().values() ** 2).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[2, 4, 6], [0, 0, 8]]


def test_sequences_without_padding_are_views() -> None:
    padded = _rows([[1.0, 2.0], [3.0, 0.0]], [2, 1])
    padded.unpad()[1].add_(5)
    assert padded.values.tolist() == [[1, 2], [8, 0]]


@pytest.mark.parametrize("kind", [Padded, LeftPadded])
@pytest.mark.parametrize(
    ("lengths", "complaint"),
    [
        ([2, -1], r"between 0 and .*\(2,\), got \[-1\] for sequence 1"),
        ([3, 1], r"between 0 and .*\(2,\), got \[3\] for sequence 0"),
        ([1], r"2 sequences have shape \(B,\) or \(B, n\), got \(1,\)"),
        ([[[1]], [[1]]], r"2 sequences have shape \(B,\) or \(B, n\), got \(2, 1, 1\)"),
    ],
)
def test_lengths_that_cannot_be_are_refused(kind: Any, lengths: Any, complaint: str) -> None:
    padded = _rows([[1.0, 2.0], [3.0, 0.0]], lengths, kind)
    with pytest.raises(ValueError, match=complaint):
        padded.unpad()
    with pytest.raises(ValueError, match=complaint):
        padded.to_nested()


def test_more_lengths_than_axes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2\).*values have the axes \(2, 1\)"):
        _rows([[1.0], [2.0]], [[1, 1], [1, 1]]).unpad()  # type: ignore[list-item]


def test_several_ragged_axes_have_no_jagged_layout() -> None:
    padded = PadCollate(ragged_dims={"": 2})([torch.ones(2, 3)])
    with pytest.raises(ValueError, match=r"one ragged axis, .*\(1, 2\)\. Use unpad"):
        padded.to_nested()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", [Padded, LeftPadded])
@pytest.mark.parametrize(
    ("lengths", "shape"), [([3, 1], (3,)), ([[3, 1], [1, 0]], (3, 3))], ids=["one axis", "two"]
)
def test_a_padded_batch_goes_through_a_compiled_graph(
    kind: type[Padded], backend: str, lengths: Any, shape: tuple[int, ...]
) -> None:
    def total(padded: Padded) -> tuple[Tensor, Padded]:
        doubled = padded._replace(values=padded.values * 2)
        return doubled.values.masked_fill(~padded.mask, 0).sum(), doubled

    torch.compiler.reset()
    compiled = torch.compile(total, fullgraph=True, backend=backend)
    for num_rows in (2, 1):
        values = torch.randn(num_rows, *shape)
        padded = kind(values, torch.tensor(lengths[:num_rows]))
        (expected, _), (result, doubled) = total(padded), compiled(padded)
        torch.testing.assert_close(result, expected)
        assert torch.equal(doubled.values, values * 2)
        assert type(doubled) is kind


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("ragged_dims", [None, {"": 2}])
def test_a_padded_batch_survives_pickling_and_a_device(side: Any, ragged_dims: Any) -> None:
    collate = PadCollate(side=side, ragged_dims=ragged_dims)
    padded = collate([torch.ones(3, 2), torch.ones(1, 2)])
    copy = pickle.loads(pickle.dumps(padded))
    assert type(copy) is type(padded)
    assert torch.equal(copy.values, padded.values)
    assert torch.equal(copy.mask, padded.mask)

    moved = move_data_to_device({"x": padded}, torch.device("meta"))["x"]
    assert type(moved) is type(padded)
    assert moved.values.is_meta
    assert moved.mask.is_meta
    assert moved.mask.shape == padded.mask.shape


@pytest.mark.parametrize("side", SIDES)
def test_a_padded_batch_comes_out_of_a_worker(side: Any) -> None:
    samples: Any = [[1, 2, 3], [4], []]
    collate = PadCollate(side=side)
    (batch,) = DataLoader(samples, 3, collate_fn=collate, num_workers=1)
    assert type(batch) is type(collate(samples))
    assert [sequence.tolist() for sequence in batch.unpad()] == samples


@pytest.mark.gpu
@pytest.mark.parametrize("side", SIDES)
def test_a_padded_batch_survives_pinned_memory_and_a_gpu(side: Any) -> None:
    samples: Any = [{"x": [1, 2, 3]}, {"x": [4]}, {"x": []}]
    collate = PadCollate(side=side)
    (batch,) = DataLoader(samples, 3, collate_fn=collate, pin_memory=True)
    pinned = batch["x"]
    assert type(pinned) is type(collate(samples)["x"])
    assert pinned.values.is_pinned()
    assert pinned.lengths.is_pinned()
    moved = move_data_to_device(pinned, torch.device("cuda"))
    assert type(moved) is type(pinned)
    assert moved.mask.is_cuda
    assert torch.equal(moved.mask.cpu(), pinned.mask)
    assert [sequence.tolist() for sequence in moved.unpad()] == [[1, 2, 3], [4], []]
    assert [sequence.tolist() for sequence in moved.to_nested().unbind()] == [[1, 2, 3], [4], []]
