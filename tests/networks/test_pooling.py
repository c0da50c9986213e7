import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_recipes.networks import masked_mean

shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.sampled_from([(), (3,), (2, 3)]))


@given(shape=shapes, seed=st.integers(0, 99))
def test_it_is_the_mean_of_the_real_steps(
    shape: tuple[int, int, tuple[int, ...]], seed: int
) -> None:
    rows, steps, rest = shape
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, steps, *rest, dtype=torch.float64, generator=generator)
    mask = torch.rand(rows, steps, generator=generator) < 0.6
    mean = masked_mean(features, mask)
    assert mean.shape == (rows, *rest)
    for i in range(rows):
        real = features[i][mask[i]]
        expected = real.mean(dim=0) if len(real) else torch.zeros(rest, dtype=torch.float64)
        torch.testing.assert_close(mean[i], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_padding_has_no_say_and_no_gradient(garbage: float) -> None:
    features = torch.ones(2, 3, 4)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    features[~mask] = garbage
    features.requires_grad_()
    mean = masked_mean(features, mask)
    assert mean.tolist() == [[1.0] * 4, [0.0] * 4]
    (gradient,) = torch.autograd.grad(mean.square().sum(), features)
    assert not gradient[~mask].any()
    torch.testing.assert_close(gradient[mask], torch.ones(2, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    features = torch.full((1, 3000, 1), 100.0, dtype=dtype)  # the sum overflows float16
    mean = masked_mean(features, torch.ones(1, 3000, dtype=torch.bool))
    assert mean.dtype == dtype
    assert mean.item() == 100.0
