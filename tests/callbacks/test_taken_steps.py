import pytest
import torch
from torch import nn

from lightning_recipes.callbacks.taken_steps import TakenSteps

INF = float("inf")


def make_optimizer(*, fused: bool) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))], fused=fused
    )


def set_gradients(optimizer: torch.optim.Optimizer, value: float | None) -> None:
    first, _ = optimizer.param_groups[0]["params"]
    first.grad = None if value is None else torch.full((2,), value)


@pytest.mark.parametrize("fused", [False, True])
def test_counts_the_steps_that_moved_a_weight(fused: bool) -> None:
    optimizer = make_optimizer(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    taken = TakenSteps(optimizer)
    weight = optimizer.param_groups[0]["params"][0]
    moved = 0
    for value in (1.0, INF, 2.0, INF, INF, 1.0, float("nan"), 3.0):
        before = weight.detach().clone()
        set_gradients(optimizer, value)
        scaler.scale(torch.ones(()))  # as a backward pass does
        scaler.step(optimizer)
        scaler.update()
        moved += int(not weight.equal(before))
        assert taken.count == taken.count == moved
    assert moved == 4


@pytest.mark.parametrize("fused", [False, True])
def test_asking_once_at_the_end_counts_all(fused: bool) -> None:
    optimizer = make_optimizer(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    taken = TakenSteps(optimizer)
    for value in (1.0, INF, 2.0):
        set_gradients(optimizer, value)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
    assert taken.count == 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_without_gradients_is_not_taken(fused: bool) -> None:
    optimizer = make_optimizer(fused=fused)
    taken = TakenSteps(optimizer)
    for value in (None, 1.0, None, 0.0):
        set_gradients(optimizer, value)
        optimizer.step()
    assert taken.count == 2


def test_counts_from_now_on_until_the_end() -> None:
    optimizer = make_optimizer(fused=False)
    set_gradients(optimizer, 1.0)
    optimizer.step()
    taken, other = TakenSteps(optimizer), TakenSteps(optimizer)
    optimizer.step()
    taken.end()
    optimizer.step()
    assert (taken.count, other.count) == (1, 2)
