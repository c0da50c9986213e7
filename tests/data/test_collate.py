import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.padded import Padded

SIDES = ["right", "left"]

tokens = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6)
signals = st.tuples(st.integers(0, 5), st.just(2)).map(lambda shape: torch.randn(shape))
images = st.tuples(st.integers(0, 3), st.integers(0, 3), st.just(2)).map(np.ones)
samples = st.fixed_dictionaries(
    {
        "tokens": tokens,
        "pair": st.tuples(signals, st.integers(-9, 9)),
        "nested": st.fixed_dictionaries({"image": images, "name": st.text(max_size=3)}),
    }
)


@given(batch=st.lists(samples, min_size=1, max_size=4), multiple=st.integers(1, 4))
@pytest.mark.parametrize("side", SIDES)
def test_without_padding_the_samples_are_back(
    side: Any, batch: list[dict[str, Any]], multiple: int
) -> None:
    collate = PadCollate(side=side, pad_to_multiple_of=multiple, ragged_dims={"nested.image": 2})
    padded = collate(batch)
    signal, number = padded["pair"]
    columns = [
        padded["tokens"].unpad(),
        signal.unpad(),
        number.tolist(),
        padded["nested"]["image"].unpad(),
        padded["nested"]["name"],
    ]
    for sample, back in zip(batch, zip(*columns, strict=True), strict=True):
        assert back[0].dtype == torch.int64
        assert back[0].tolist() == sample["tokens"]
        assert torch.equal(back[1], sample["pair"][0])
        assert back[2] == sample["pair"][1]
        assert torch.equal(back[3], torch.from_numpy(sample["nested"]["image"]))
        assert back[4] == sample["nested"]["name"]


# --- a model that respects the mask cannot tell a padded batch from its samples -------------------


def _attention_loss(weights: Sequence[Tensor], batch: dict[str, Padded]) -> Tensor:
    """Return the summed cross-entropy of every token's label, of attention to what is real."""
    table, query, head = weights
    mask = batch["tokens"].mask
    states = table[batch["tokens"].values]
    scores = (states @ query @ states.mT).masked_fill(~mask[:, None, :], -1e300)
    logits = scores.softmax(dim=-1) @ states @ head
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].values.flatten(), reduction="sum")


def _bag_loss(weights: Sequence[Tensor], batch: dict[str, Padded]) -> Tensor:
    """Return the summed squares of an affine map of every sequence's mean; 0 if it is empty."""
    table, query, _ = weights
    mask = batch["tokens"].mask[..., None]
    mean = (table[batch["tokens"].values] * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return (mean @ query + 1).pow(2).sum()


@pytest.mark.parametrize("loss", [_attention_loss, _bag_loss])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("lengths", [[5, 1, 3], [4, 4], [2], [0, 3], [0, 0]])
def test_loss_and_gradient_of_a_batch_are_the_sums_over_its_samples(
    loss: Callable[..., Tensor], side: Any, lengths: list[int]
) -> None:
    collate = PadCollate(pad_value={"tokens": 6, "labels": -100}, side=side, pad_to_multiple_of=4)
    alone = PadCollate(pad_value={"tokens": 0, "labels": -100})
    rng = torch.Generator().manual_seed(0)
    weights = [
        nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float64))
        for shape in [(7, 4), (4, 4), (4, 3)]
    ]
    samples = [
        {
            "tokens": torch.randint(7, (length,), generator=rng),
            "labels": torch.randint(3, (length,), generator=rng),
        }
        for length in lengths
    ]

    def with_gradient(total: Tensor) -> list[Tensor]:
        return [total, *torch.autograd.grad(total, weights, materialize_grads=True)]

    together = with_gradient(loss(weights, collate(samples)))
    one_by_one = with_gradient(sum((loss(weights, alone([s])) for s in samples), torch.zeros(())))
    for batch, summed in zip(together, one_by_one, strict=True):
        torch.testing.assert_close(batch, summed, rtol=1e-10, atol=1e-10)


# --- what it refuses ------------------------------------------------------------------------------


def test_each_field_has_its_own_pad_value() -> None:
    collate = PadCollate(pad_value={"labels": -100, "meta.0": 9})
    long = {"labels": [1, 2], "tokens": [1, 2], "meta": ([1, 2],)}
    short = {"labels": [1], "tokens": [1], "meta": ([1],)}
    batch = collate([long, short])
    assert batch["labels"].values.tolist() == [[1, 2], [1, -100]]
    assert batch["tokens"].values.tolist() == [[1, 2], [1, 0]]
    assert batch["meta"][0].values.tolist() == [[1, 2], [1, 9]]


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
        ({"pad_to_multiple_of": 2.5}, "pad_to_multiple_of .* got 2.5"),
        ({"max_length": {"a": 0}}, "max_length .* got 0"),
        ({"max_length": True}, "max_length .* got True"),
        ({"ragged_dims": {"a": 0}}, "ragged_dims .* got 0"),
        ({"pad_value": None}, "pad_value .* got None"),
        ({"pad_value": {"a": "0"}}, "pad_value .* got '0'"),
        ({"on_too_long": "cut", "max_length": 3}, "on_too_long .* got 'cut'"),
        ({"on_too_long": "truncate"}, "needs a max_length .* got None"),
        ({"fixed": ["a", "b"], "pad_value": {"b": 1}}, r"fixed .* got \['b'\]"),
        ({"fixed": ["a", "b"], "ragged_dims": {"a": 2}}, r"fixed .* got \['a'\]"),
        ({"fixed": ["a", "b"], "max_length": {"a": 2}}, r"fixed .* got \['a'\]"),
    ],
)
def test_an_argument_out_of_range_is_refused(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PadCollate(**arguments)


def test_a_collate_function_travels_to_a_worker() -> None:
    collate = pickle.loads(pickle.dumps(PadCollate(pad_value={"a": -1}, side="left")))
    assert collate([{"a": [1, 2]}, {"a": [1]}])["a"].values.tolist() == [[1, 2], [-1, 1]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"pad_value": {"label": -100}},
        {"fixed": ["label"]},
        {"ragged_dims": {"label": 2}},
        {"max_length": {"label": 2}},
    ],
)
def test_a_name_that_no_sample_has_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\['labels'\], got \['label'\]"):
        PadCollate(**arguments)([{"labels": [1, 2]}])
