import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_recipes import Finding, LeftPadded, Padded
from lightning_recipes.nonfinite.tracer import find_in_batch, find_in_weights, trace

NAN, INF = math.nan, math.inf
GOOD, BAD = torch.ones(2), torch.tensor([1.0, NAN])


@dataclass
class Sample:
    x: Tensor
    rest: Any = None


def places(findings: list[Finding]) -> list[str]:
    return [f"{finding.kind} {finding.name}".rstrip() for finding in findings]


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        (BAD, "batch field"),
        ((GOOD, {"a": {"b": [GOOD, BAD]}}), "batch field [1]['a']['b'][1]"),
        (Padded(BAD, torch.tensor([2])), "batch field .values"),
        ({"text": LeftPadded(BAD, torch.tensor([2]))}, "batch field ['text'].values"),
        (Sample(BAD), "batch field .x"),
        ([Sample(GOOD, rest={"deep": (Sample(BAD),)})], "batch field [0].rest['deep'][0].x"),
    ],
)
def test_names_the_field_of_a_batch(batch: Any, name: str) -> None:
    (finding,) = find_in_batch(batch)
    assert places([finding]) == [name]
    assert finding.detail == "1 nan of 2, in row 1 of 2, the finite ones in [1, 1]"


def test_what_holds_no_float_is_no_field() -> None:
    assert find_in_batch({"i": torch.tensor([1]), "s": "nan", "f": NAN, "n": None}) == []


def test_names_the_weights_and_leaves_masks_alone() -> None:
    first, normalise, last = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)
    module = nn.Sequential(first, normalise, last)
    module.register_buffer("mask", torch.tensor([0.0, -INF]))
    assert find_in_weights(module) == []
    assert normalise.running_var is not None
    with torch.no_grad():
        first.weight[0, 0] = INF
        last.bias.fill_(NAN)
        normalise.running_var[0] = NAN
    last.requires_grad_(False)
    assert places(find_in_weights(module)) == [
        "parameters 0.weight, 2.bias",
        "buffers 1.running_var",
    ]


class BadBackward(torch.autograd.Function):
    """A forward pass like any other, and NaN on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * NAN


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def run(*parts: nn.Module, x: Tensor | None = None, loss: Any = torch.sum) -> list[Finding]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), *parts)
    inputs = torch.ones(4, 2) if x is None else x
    findings = trace(module, lambda: loss(module(inputs)))
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    return findings


def test_a_finite_step_has_no_findings() -> None:
    assert run(nn.ReLU(inplace=True), nn.Linear(3, 1)) == []


def test_names_the_first_module_and_what_was_before_it() -> None:
    findings = run(nn.ReLU(), Apply(lambda x: (x - x) / (x - x)), nn.Linear(3, 1))
    assert places(findings) == ["activation output of 2 (Apply)", "loss"]
    assert findings[0].before.startswith("input of 2 (Apply) in [0, ")


def test_names_the_input_where_it_comes_from_outside() -> None:
    findings = run(x=torch.full((1, 2), NAN))
    assert places(findings)[0] == "activation input of Sequential"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (x, {"deep": [x * NAN]}),
        lambda x: Sample(x, rest=Padded(x * NAN, x)),
    ],
    ids=["tuple and dict", "dataclass"],
)
def test_looks_into_what_a_module_returns(wrap: Callable[[Tensor], Any]) -> None:
    findings = run(Apply(wrap), loss=lambda output: torch.tensor(1.0))
    assert places(findings) == ["activation output of 1 (Apply)"]


def test_names_where_the_way_back_went_wrong() -> None:
    findings = run(nn.Tanh(), Apply(BadBackward.apply), nn.Linear(3, 1))
    # finite when it arrives at the output of 2, and not when it leaves it for that of 1
    assert places(findings) == ["gradient of output of 1 (Tanh)", "gradient of 0.weight, 0.bias"]
    assert findings[0].before.startswith("gradient of output of 2 (Apply)")


def test_names_the_gradient_behind_a_change_in_place() -> None:
    findings = run(nn.ReLU(inplace=True), Apply(BadBackward.apply), nn.Linear(3, 1))
    assert places(findings)[0] == "gradient of output of 1 (ReLU)"


def test_a_root_of_zero_is_found_in_the_gradients() -> None:
    findings = run(nn.ReLU(), loss=lambda x: (x - x).square().sum(0).sqrt().sum())
    assert places(findings) == ["gradient of output of 1 (ReLU)", "gradient of 0.weight, 0.bias"]


def test_a_constant_in_the_loss_is_the_loss() -> None:
    findings = run(loss=lambda x: x.sum() + INF)
    assert places(findings) == ["loss"]
    assert findings[0].before.startswith("output of Sequential")


def test_a_mask_is_passed_over_for_what_comes_later() -> None:
    mask = torch.tensor([0.0, -INF, 0.0])
    findings = run(Apply(lambda x: x + mask), nn.Softmax(dim=-1), Apply(lambda x: x * NAN))
    assert places([f for f in findings if not f.is_masked]) == [
        "activation output of 3 (Apply)",
        "loss",
    ]
    assert [f.name for f in findings if f.is_masked] == ["output of 1 (Apply)"]


def test_no_gradient_is_asked_of_what_has_none() -> None:
    frozen = nn.Linear(2, 1).requires_grad_(False)
    outside = torch.ones(1, 2, requires_grad=True)
    assert trace(frozen, lambda: frozen(outside).sum()) == []
    assert trace(frozen, lambda: None) == []


def test_an_error_does_not_hide_what_came_before_it() -> None:
    def refuse(x: Tensor) -> Tensor:
        raise ValueError("I take no NaN.")

    findings = run(Apply(lambda x: x * NAN), Apply(refuse))
    assert places(findings) == ["activation output of 1 (Apply)", "replay of the training step"]
    assert findings[1].detail == "ValueError: I take no NaN."


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_are_named_behind_a_checkpoint(use_reentrant: bool) -> None:
    inner = nn.Linear(3, 3)
    block = Apply(lambda x: checkpoint(inner, x, use_reentrant=use_reentrant))
    block.inner = inner
    findings = run(block, Apply(BadBackward.apply), nn.Linear(3, 1))
    # the same tensor as the output of 1, which is the later name of it
    first = "gradient of output of 1 (Apply)" if use_reentrant else "gradient of output of 1.inner"
    assert places(findings)[0].startswith(first)
    assert places(findings)[1:] == [
        # torch.autograd.grad does not go through the reentrant one
        "replay of the training step"
        if use_reentrant
        else "gradient of 0.weight, 0.bias, 1.inner.weight, 1.inner.bias"
    ]
