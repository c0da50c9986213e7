import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_recipes import PadCollate
from lightning_recipes.certify.digests import digest


@dataclass
class Pair:
    one: Tensor
    two: str


class Bag:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_same_bits_have_the_same_digest_wherever_they_lie() -> None:
    matrix = torch.randn(4, 6)
    assert digest(matrix) == digest(matrix.clone())
    assert digest(matrix.t()) == digest(matrix.t().contiguous())
    assert digest(matrix[:, ::2]) == digest(matrix[:, ::2].clone())
    assert digest(matrix.requires_grad_()) == digest(matrix.detach())
    assert digest(torch.tensor(math.nan)) == digest(torch.tensor(math.nan))


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64],
)
def test_every_dtype_and_shape_counts(dtype: torch.dtype) -> None:
    ones = torch.ones(4, dtype=dtype)
    others = [torch.zeros(4, dtype=dtype), torch.ones(2, 2, dtype=dtype), torch.ones(4).byte()]
    changed = ones.clone()
    changed[3] = 0
    assert digest(ones) not in [digest(other) for other in [*others, changed]]
    digest(torch.ones((), dtype=dtype)), digest(torch.ones((0, 3), dtype=dtype))


def test_one_bit_counts() -> None:
    one = torch.tensor([1.0, 2.0])
    assert digest(one) != digest(torch.nextafter(one, torch.tensor(math.inf)))


def test_lazy_views_have_the_bits_they_show() -> None:
    value = torch.tensor([1 + 2j])
    assert digest(value.conj()) == digest(torch.tensor([1 - 2j]))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_tensors(make: Any) -> None:
    one, two = torch.eye(3), torch.eye(3).roll(1, 0)
    assert digest(make(one)) == digest(make(one.clone()))
    assert digest(make(one)) != digest(make(two))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: [x],
        lambda x: (1, x),
        lambda x: {"a": {"b": x}},
        lambda x: Pair(x, "two"),
        lambda x: Bag([x]),
        lambda x: np.array(x.tolist()),
        lambda x: np.array([x, None], dtype=object),
        lambda x: x.tolist(),
        lambda x: {float(x[0])},
    ],
)
def test_goes_into_whatever_a_batch_is_made_of(wrap: Any) -> None:
    assert digest(wrap(torch.tensor([1.0]))) == digest(wrap(torch.tensor([1.0])))
    assert digest(wrap(torch.tensor([1.0]))) != digest(wrap(torch.tensor([2.0])))


def test_structure_counts() -> None:
    values: list[Any] = [
        [[1], 2],
        [[1, 2]],
        [1, [2]],
        (1, 2),
        [1, 2],
        ["1", 2],
        {"1": 2},
        "12",
        None,
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_padded_batch() -> None:
    ragged = [torch.ones(2), torch.ones(3)]
    batch = PadCollate()(ragged)
    assert digest(batch) == digest(PadCollate()(ragged))
    assert digest(batch) != digest(PadCollate(pad_value=1)(ragged))


def test_objects_that_hold_themselves_end() -> None:
    bag = Bag(1)
    bag.value = bag
    assert digest(bag) == digest(bag)
