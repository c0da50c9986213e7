import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from lightning_recipes.gradients import clip_with_norm, module_norms, nonfinite_names, total_norm
from tests.ranks import run_ranks
from tests.test_performance import SYNCHRONISING, Operators

ORDERS = [0.5, 1.0, 2.0, 3.0, math.inf]
NAN, INF = math.nan, math.inf


def norm_by_numpy(tensors: Sequence[Tensor], order: float) -> float:
    """Of the values in float64 (complex: their absolute values), as one vector."""
    values = [np.abs(tensor.to_dense().to(torch.complex128).numpy()) for tensor in tensors]
    vector = np.concatenate([np.zeros(1), *(value.ravel() for value in values)])
    return float(np.linalg.norm(vector, order))


def rows(*indices: int) -> Tensor:
    """Return a sparse 4 x 3 gradient of an embedding that saw these rows, as often as they are."""
    values = torch.arange(1.0, 1 + 3 * len(indices)).view(-1, 3)
    return torch.sparse_coo_tensor(torch.tensor([indices]), values, (4, 3), check_invariants=True)


def everything() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    real = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    dense = [torch.randn(5, 3, generator=generator).to(dtype) for dtype in (*real, *real[:2])]
    waves = torch.randn(4, generator=generator, dtype=torch.complex64)
    return [*dense, torch.ones(0, 3), rows(1, 3, 1), rows(), torch.tensor(2.5), waves]


def parameters_with(*gradients: Tensor | None) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        like = torch.zeros(2) if gradient is None else torch.zeros_like(gradient).to_dense()
        parameters.append(nn.Parameter(like, requires_grad=gradient is not None))
        parameters[-1].grad = None if gradient is None else gradient.clone()
    return parameters


# --- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_the_norm_is_that_of_one_vector(order: float) -> None:
    tensors = everything()
    norm = total_norm([None, *tensors, None], order)
    assert norm.shape == ()
    assert norm.item() == pytest.approx(norm_by_numpy(tensors, order), rel=1e-5)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("index", range(len(everything())))
def test_the_norm_of_one_tensor(index: int, order: float) -> None:
    tensor = everything()[index]
    expected = pytest.approx(norm_by_numpy([tensor], order), rel=1e-5)
    assert total_norm([tensor], order).item() == expected


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=4), max_size=4),
    st.sampled_from(ORDERS),
)
def test_how_the_values_are_cut_into_tensors_does_not_matter(
    parts: list[list[float]], order: float
) -> None:
    tensors = [torch.tensor(part, dtype=torch.float64) for part in parts]
    whole = total_norm([torch.cat([torch.zeros(1, dtype=torch.float64), *tensors])], order)
    assert total_norm(tensors, order).item() == pytest.approx(whole.item(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_do_not_overflow(dtype: torch.dtype) -> None:
    values = torch.full((10,), 30000.0).to(dtype)
    expected = math.sqrt(10) * float(values[0])
    assert total_norm([values]).item() == pytest.approx(expected)
    assert total_norm(list(values[:, None])).item() == pytest.approx(expected)
    # a wider neighbour makes no difference
    assert total_norm([torch.zeros(1), values]).item() == pytest.approx(expected)


def test_without_tensors_the_norm_is_zero() -> None:
    for nothing in ([], [None], [torch.ones(0)], [rows()]):
        for order in ORDERS:
            assert total_norm(nothing, order).item() == 0


@pytest.mark.parametrize("order", [0, -1.0, -math.inf, math.nan])
def test_an_order_that_is_none_is_refused(order: float) -> None:
    with pytest.raises(ValueError, match=rf"norm_type is the order of a norm.*got {order}"):
        total_norm([torch.ones(2)], order)
    with pytest.raises(ValueError, match="norm_type"):
        module_norms([("a.weight", torch.ones(2))], depth=1, norm_type=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_norm_is_finite_only_if_everything_is(
    order: float, bad: float, dtype: torch.dtype
) -> None:
    for values in ([1.0, bad, 2.0], [bad, 1.0], [1.0, bad]):
        tensors = [torch.ones(3), torch.tensor(values, dtype=dtype), torch.ones(3)]
        assert not math.isfinite(total_norm(tensors, order).item())


# --- by module ------------------------------------------------------------------------------------


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.encoder = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        self.head = nn.Linear(3, 1)


def test_names_are_cut_at_a_depth() -> None:
    named = [(name, p.detach()) for name, p in Tree().named_parameters()]
    names = [list(module_norms(named, depth=depth)) for depth in (1, 2, 3, 9)]
    deep = ["scale", "encoder.0", "encoder.1.0", "head"]
    assert names == [
        ["scale", "encoder", "head"],
        ["scale", "encoder.0", "encoder.1", "head"],
        deep,
        deep,
    ]


def test_one_name_never_means_two_things() -> None:
    one = torch.ones(())
    named = [("encoder.scale", one), ("encoder.0.weight", one), ("encoder.0.bias", one)]
    assert list(module_norms(named, depth=1)) == ["encoder"]
    assert list(module_norms(named, depth=2)) == ["encoder.own", "encoder.0"]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0])
def test_powers_of_the_modules_add_up_to_the_whole(depth: int, order: float) -> None:
    named = [(name, p.detach()) for name, p in Tree().named_parameters()]
    norms = module_norms(named, depth=depth, norm_type=order)
    whole = total_norm([tensor for _, tensor in named], order)
    assert sum(norm.item() ** order for norm in norms.values()) == pytest.approx(
        whole.item() ** order
    )


def test_a_module_without_gradients_has_no_norm() -> None:
    assert module_norms([("a.weight", None), ("b.weight", torch.ones(1))], depth=1) == {"b": 1.0}


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_of_nothing_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth .* got {depth}"):
        module_norms([], depth=depth)


# --- clipping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e6])
def test_clips_as_torch_does(max_norm: float) -> None:
    gradients = [torch.randn(3, 2), None, torch.randn(4).double(), torch.randn(1)]
    ours, theirs = parameters_with(*gradients), parameters_with(*gradients)
    clip_with_norm(ours, max_norm=max_norm, norm=total_norm([p.grad for p in ours]))
    torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad, their.grad)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clips_sparse_and_half_gradients_too(max_norm: float) -> None:
    gradients = [tensor for tensor in everything() if not tensor.is_complex()]
    parameters = parameters_with(*gradients)
    norm = total_norm([p.grad for p in parameters])
    clip_with_norm(parameters, max_norm=max_norm, norm=norm)
    factor = min(1.0, max_norm / (norm_by_numpy(gradients, 2) + 1e-6))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad.layout, parameter.grad.dtype) == (gradient.layout, gradient.dtype)
        actual, expected = parameter.grad.to_dense().double(), gradient.to_dense().double() * factor
        narrow = gradient.dtype in (torch.float16, torch.bfloat16)
        torch.testing.assert_close(actual, expected, rtol=1e-2 if narrow else 1e-5, atol=1e-6)


def test_a_multiple_of_the_norm_clips_multiplied_gradients() -> None:
    """The clip of 2^k g with the norm of g is 2^k times the clip of g: exact in binary."""
    gradient = torch.randn(20)
    (plain,), (scaled,) = parameters_with(gradient), parameters_with(gradient * 2.0**16)
    norm = total_norm([gradient])
    clip_with_norm([plain], max_norm=0.1, norm=norm)
    clip_with_norm([scaled], max_norm=0.1, norm=norm)
    assert plain.grad is not None
    assert scaled.grad is not None
    assert scaled.grad.equal(plain.grad * 2.0**16)


# --- not finite -----------------------------------------------------------------------------------


def test_names_what_is_not_finite_in_order() -> None:
    named: list[tuple[str, Tensor | None]] = [
        ("z", torch.tensor([1.0, NAN])),
        ("none", None),
        ("whole numbers", torch.tensor([1, 2])),
        ("large", torch.full((10,), 60000.0, dtype=torch.float16)),
        ("larger", torch.full((10,), 3e38)),
        ("largest", torch.full((10,), 1e308, dtype=torch.float64)),
        ("empty", torch.ones(0)),
        ("a", torch.tensor([-INF, 1.0], dtype=torch.float16)),
        ("no rows", rows()),
        ("rows", rows(2) * INF),
        ("wave", torch.tensor([complex(1, NAN)])),
    ]
    assert nonfinite_names(named) == ["z", "a", "rows", "wave"]
    assert nonfinite_names([]) == nonfinite_names(named[1:3]) == []


# --- cost -----------------------------------------------------------------------------------------


def test_nothing_waits_for_the_device() -> None:
    types = [torch.float16, torch.float32, torch.float16, torch.float64]
    named = [(f"{dtype}.{index}", torch.randn(3).to(dtype)) for index, dtype in enumerate(types)]
    parameters = parameters_with(*[tensor for _, tensor in named])

    def syncs(function: Callable[[], Any]) -> int:
        with Operators() as operators:
            function()
        assert operators.calls
        return sum(operators.calls[name] for name in SYNCHRONISING)

    norm = total_norm([p.grad for p in parameters])
    for order in ORDERS:
        assert syncs(partial(total_norm, [tensor for _, tensor in named], order)) == 0
    assert syncs(lambda: module_norms(named, depth=1)) == 0
    assert syncs(lambda: clip_with_norm(parameters, max_norm=0.1, norm=norm)) == 0


# --- shards on two ranks --------------------------------------------------------------------------


class Sharded(nn.Module):
    """Its head's bias has one entry, so the second rank's shard of it is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.head = nn.Linear(5, 1)

    def forward(self, points: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.body(points)))
        return output


def _gradients_of(module: nn.Module) -> list[Tensor | None]:
    torch.manual_seed(1)
    module(torch.randn(6, 3)).square().sum().backward()
    return [parameter.grad for parameter in module.parameters()]


def _whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _on_a_rank() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, Any] = {}

    def shard(tensor: Tensor) -> DTensor:
        return distribute_tensor(tensor, mesh, [Shard(0)])

    torch.manual_seed(0)
    module = Sharded()
    fully_shard(module, mesh=mesh)
    gradients = _gradients_of(module)
    assert all(isinstance(gradient, DTensor) for gradient in gradients)
    named = [(name, p.grad) for name, p in module.named_parameters()]
    found["norms"] = [total_norm(gradients, order).item() for order in ORDERS]
    found["by module"] = {k: v.item() for k, v in module_norms(named, depth=1).items()}
    clip_with_norm(module.parameters(), max_norm=0.1, norm=total_norm(gradients))
    found["clipped"] = [_whole(p.grad).numpy() for p in module.parameters()]

    mixed = _mixed()
    placed = [
        shard(mixed[0]),
        mixed[1],
        shard(mixed[2]),
        distribute_tensor(mixed[3], mesh, [Replicate()]),
        shard(mixed[4]),
        shard(mixed[5]),
    ]
    found["mixed"] = [total_norm(placed, order).item() for order in ORDERS]
    found["mixed, backwards"] = [total_norm(placed[::-1], order).item() for order in ORDERS]
    parameters = [nn.Parameter(torch.zeros_like(tensor)) for tensor in placed]
    for parameter, tensor in zip(parameters, placed, strict=True):
        parameter.grad = tensor.clone()
    clip_with_norm(parameters, max_norm=0.1, norm=total_norm(placed))
    found["mixed, clipped"] = [_whole(p.grad).double().numpy() for p in parameters]

    found["overflow"] = total_norm([shard(torch.full((10,), 30000.0).half())]).item()
    found["names"] = [
        nonfinite_names(
            [("good", shard(torch.ones(4))), (f"{bad} at {place}", shard(_bad(bad, place)))]
        )
        for bad in (NAN, INF)
        for place in range(4)
    ]
    return found


def _mixed() -> list[Tensor]:
    torch.manual_seed(2)
    types = [torch.float32, torch.float32, torch.float16, torch.float32, torch.float64]
    return [*(torch.randn(5, 2).to(dtype) for dtype in types), torch.randn(1).bfloat16()]


def _bad(value: float, place: int) -> Tensor:
    tensor = torch.ones(4)
    tensor[place] = value
    return tensor


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(_on_a_rank)


def test_shards_have_the_norm_of_the_whole(ranks: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    module = Sharded()
    gradients = [_whole(gradient) for gradient in _gradients_of(module)]
    body, head = norm_by_numpy(gradients[:2], 2), norm_by_numpy(gradients[2:], 2)
    for found in ranks:
        expected = [norm_by_numpy(gradients, order) for order in ORDERS]
        assert found["norms"] == pytest.approx(expected, rel=1e-4)
        assert found["by module"] == pytest.approx({"body": body, "head": head}, rel=1e-5)
        assert found["overflow"] == pytest.approx(math.sqrt(10) * 30000, rel=1e-3)


def test_shards_are_clipped_like_the_whole(ranks: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    module = Sharded()
    _gradients_of(module)
    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    for found in ranks:
        for clipped, parameter in zip(found["clipped"], module.parameters(), strict=True):
            np.testing.assert_allclose(clipped, _whole(parameter.grad).numpy(), rtol=1e-5)


def test_shards_of_all_types_go_with_plain_tensors(ranks: list[dict[str, Any]]) -> None:
    mixed = _mixed()
    factor = 0.1 / norm_by_numpy(mixed, 2)
    for found in ranks:
        expected = [norm_by_numpy(mixed, order) for order in ORDERS]
        assert found["mixed"] == pytest.approx(expected, rel=1e-4)
        assert found["mixed, backwards"] == pytest.approx(expected, rel=1e-4)
        for clipped, tensor in zip(found["mixed, clipped"], mixed, strict=True):
            expected_tensor = tensor.double().numpy() * factor
            np.testing.assert_allclose(clipped, expected_tensor, rtol=1e-2)


def test_names_a_shard_of_one_rank_on_all(ranks: list[dict[str, Any]]) -> None:
    expected = [[f"{bad} at {place}"] for bad in (NAN, INF) for place in range(4)]
    assert [found["names"] for found in ranks] == [expected, expected]


# --- two devices ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_on_two_devices_go_together(order: float) -> None:
    tensors = [
        torch.randn(5).to(device, dtype)
        for device in ("cpu", "cuda")
        for dtype in (torch.float16, torch.float32)
    ]
    expected = norm_by_numpy([tensor.cpu() for tensor in tensors], order)
    assert total_norm(tensors, order).item() == pytest.approx(expected, rel=1e-5)
    assert total_norm(tensors, order).device.type == "cpu"
    parameters = parameters_with(*tensors)
    clip_with_norm(parameters, max_norm=0.1, norm=total_norm(tensors))
    clipped = [p.grad.cpu() for p in parameters if p.grad is not None]
    assert norm_by_numpy(clipped, 2) == pytest.approx(0.1, rel=1e-2)
    assert nonfinite_names([("cpu", tensors[0]), ("cuda", tensors[2] / 0)]) == ["cuda"]
