import math

import pytest
import torch
from torch import Tensor

from lightning_recipes.nonfinite.finding import Finding, Values, is_float, listed

NAN, INF = math.nan, math.inf


def test_counts_and_the_range_of_the_rest() -> None:
    values = Values.of(torch.tensor([NAN, INF, INF, -INF, -INF, -INF, -2.0, 7.0]))
    assert values == Values(
        num_nan=1,
        num_inf=2,
        num_neg_inf=3,
        num_total=8,
        rows=[0, 1, 2, 3, 4, 5],
        num_rows=8,
        low=-2.0,
        high=7.0,
    )
    assert str(values) == (
        "1 nan, 2 inf, 3 -inf of 8, in row 0, 1, 2, 3, 4 and 1 more of 8, "
        "the finite ones in [-2, 7]"
    )
    assert not values.is_finite


def test_the_samples_concerned_are_named() -> None:
    batch = torch.ones(4, 2, 3)
    batch[2, 1, 0] = NAN
    assert str(Values.of(batch)) == "1 nan of 24, in row 2 of 4, the finite ones in [1, 1]"


def test_nothing_finite_has_no_range() -> None:
    values = Values.of(torch.full((2, 2), NAN))
    assert (values.low, values.high, values.range) == (None, None, "[]")
    assert str(values) == "4 nan of 4"


@pytest.mark.parametrize(
    ("tensor", "num_nan", "num_inf"),
    [
        (torch.tensor([1.0, NAN], dtype=torch.float16), 1, 0),
        (torch.tensor([1.0, INF], dtype=torch.bfloat16), 0, 1),
        (torch.tensor([complex(1, NAN), complex(INF, 0)]), 1, 1),
        (torch.tensor([0.0, INF, 1.0]).to_sparse(), 0, 1),
        (torch.tensor(NAN), 1, 0),
        (torch.empty(0), 0, 0),
    ],
    ids=["float16", "bfloat16", "complex", "sparse", "scalar", "empty"],
)
def test_any_layout_is_counted(tensor: Tensor, num_nan: int, num_inf: int) -> None:
    values = Values.of(tensor)
    assert (values.num_nan, values.num_inf) == (num_nan, num_inf)
    assert values.is_finite == (num_nan + num_inf == 0)


@pytest.mark.parametrize(
    ("numbers", "is_masked"),
    [([-INF, 1.0], True), ([-INF, NAN], False), ([-INF, INF], False), ([1.0], False)],
)
def test_a_mask_is_minus_infinity_and_nothing_else(numbers: list[float], is_masked: bool) -> None:
    assert Finding.in_tensor("batch", "", torch.tensor(numbers)).is_masked == is_masked


def test_reads_as_a_sentence() -> None:
    finding = Finding.in_tensor("activation", "output of 0 (ReLU)", torch.tensor([INF]), "input")
    assert str(finding) == "activation output of 0 (ReLU): 1 inf of 1; just before: input"
    assert str(Finding.in_tensor("loss", "", torch.tensor(NAN))) == "loss: 1 nan of 1"


def test_many_names_are_counted() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_what_can_hold_a_nan() -> None:
    assert is_float(torch.ones(1))
    assert is_float(torch.ones(1, dtype=torch.complex64))
    assert not is_float(torch.ones(1, dtype=torch.int64))
    assert not is_float(1.0)
