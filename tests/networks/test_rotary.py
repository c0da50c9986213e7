import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_recipes.networks.rotary import rotate


def turn(vector: Tensor, position: int) -> Tensor:
    return rotate(vector[None, None, None], torch.tensor([[position]]))[0, 0, 0]


@given(start=st.integers(0, 1000), distance=st.integers(-50, 50), shift=st.integers(0, 1000))
def test_products_depend_on_the_distance_only(start: int, distance: int, shift: int) -> None:
    query, key = torch.randn(2, 8, dtype=torch.float64)
    here = turn(query, start) @ turn(key, start + distance)
    there = turn(query, start + shift) @ turn(key, start + shift + distance)
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(turn(query, start).norm(), query.norm())


def test_pairs_turn_as_complex_numbers() -> None:
    features = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 0, 9, 300]])
    pairs = torch.complex(features[..., :3], features[..., 3:])
    speeds = torch.tensor([1.0, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)], dtype=torch.float64)
    angles = positions[:, None, :, None] * speeds
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rotate(features, positions), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tells_far_positions_apart(dtype: torch.dtype) -> None:
    vector = torch.ones(2)
    exact = turn(vector, 257)
    assert not torch.allclose(exact, turn(vector, 256), atol=0.1)
    turned = turn(vector.to(dtype), 257)
    assert turned.dtype == dtype
    torch.testing.assert_close(turned.float(), exact, rtol=1e-2, atol=1e-2)
