"""What is caught is called by its name, with its step and its place."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_recipes import NaNDetector, Padded
from tests.callbacks.faulty import (
    INF,
    NAN,
    BadBackward,
    Hook,
    Net,
    at_batch,
    error_of,
    fit,
    make_batches,
    make_net,
    make_trainer,
    zero_root,
)

HOOKS: dict[str, tuple[Hook, str]] = {
    "a NaN loss": (at_batch(2, lambda net, loss: loss * NAN), "loss"),
    "a constant that no gradient sees": (at_batch(2, lambda net, loss: loss + INF), "loss"),
    "minus infinity": (at_batch(2, lambda net, loss: loss - INF), "loss"),
    "a dictionary": (at_batch(2, lambda net, loss: {"loss": loss * NAN}), "loss"),  # type: ignore[arg-type,return-value]
    "a root of zero": (at_batch(2, zero_root), "gradient of last.weight"),
    "only on the way back": (
        at_batch(2, lambda net, loss: BadBackward.apply(loss)),  # type: ignore[no-untyped-call]
        "gradient of output of last (Linear)",
    ),
}


@pytest.mark.parametrize(("hook", "name"), HOOKS.values(), ids=HOOKS)
def test_names_where_it_began(hook: Hook, name: str, tmp_path: Path) -> None:
    net = make_net(hook)
    error = error_of(make_trainer(tmp_path, NaNDetector()), net, make_batches(5))
    assert f"{error.first}".partition(":")[0] == name
    assert (error.step, error.epoch, error.ranks) == (2, 0, [0])
    (origin,) = error.origins
    assert (origin.batch_idx, origin.micro_batch, origin.num_micro_batches) == (2, 0, 1)
    assert "(optimizer step 2, epoch 0)" in str(error)
    assert f"rank 0, batch 2: began with {name}" in str(error)
    assert all(parameter.isfinite().all() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("accumulate", "bad", "step", "micro_batch", "num_micro_batches"),
    [(1, 0, 0, 0, 1), (1, 6, 6, 0, 1), (3, 0, 0, 0, 3), (3, 4, 1, 1, 3), (3, 6, 2, 0, 1)],
    ids=["first", "last", "first of a window", "middle of a window", "leftover window"],
)
def test_knows_the_micro_batch(
    accumulate: int, bad: int, step: int, micro_batch: int, num_micro_batches: int, tmp_path: Path
) -> None:
    # seven batches: steps 0, 1 and 2 with windows of three; the fault is in the second epoch
    net = make_net(at_batch(bad, lambda net, loss: loss * (NAN if net.current_epoch else 1)))
    trainer = make_trainer(
        tmp_path, NaNDetector(), max_epochs=2, accumulate_grad_batches=accumulate
    )
    error = error_of(trainer, net, make_batches(7))
    assert (error.step, error.epoch) == (step + math.ceil(7 / accumulate), 1)
    (origin,) = error.origins
    assert origin.batch_idx == bad
    assert (origin.micro_batch, origin.num_micro_batches) == (micro_batch, num_micro_batches)


@dataclass
class Sample:
    x: Tensor
    rest: Any = None


class Loose(LightningModule):
    """Takes its batch alone, and has a part that is frozen and one that is compiled or not."""

    def __init__(self, get: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.get = get
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.last = nn.Linear(3, 1)
        self.register_buffer("mask", torch.tensor([0.0, -INF, 0.0]))

    def training_step(self, batch: Any) -> Tensor:
        scores = self.frozen(self.get(batch)) + self.mask
        return self.last(scores.softmax(-1)).sum()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.last.parameters(), lr=0.1)


GOOD, BAD = torch.ones(2, 3), torch.tensor([[1.0, INF, 1.0], [NAN, 1.0, 1.0]])
BATCHES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor], str]] = {
    "nest": (lambda x: {"a": [1, {"b": x}]}, lambda b: b["a"][1]["b"], "['a'][1]['b']"),
    "padded": (lambda x: Padded(x, torch.ones(2)), lambda b: b.values, ".values"),
    "dataclass": (lambda x: Sample(GOOD, {"y": x}), lambda b: b.rest["y"], ".rest['y']"),
}


@pytest.mark.parametrize(("wrap", "get", "name"), BATCHES.values(), ids=BATCHES)
def test_names_the_field_of_any_batch(
    wrap: Callable[[Tensor], Any], get: Callable[[Any], Tensor], name: str, tmp_path: Path
) -> None:
    error = error_of(
        make_trainer(tmp_path, NaNDetector()), Loose(get), [wrap(GOOD), wrap(GOOD), wrap(BAD)]
    )
    assert error.step == 2
    assert f"{error.first}" == (f"batch field {name}: 1 nan, 1 inf of 6, the finite ones in [1, 1]")


@pytest.mark.parametrize("part", ["frozen", "last"])
def test_names_the_parameters(part: str, tmp_path: Path) -> None:
    module = Loose(lambda batch: batch)
    with torch.no_grad():
        getattr(module, part).weight[0, 0] = NAN
    error = error_of(make_trainer(tmp_path, NaNDetector()), module, [GOOD])
    assert f"{error.first}".startswith(f"parameters {part}.weight: 1 nan of")


@pytest.mark.parametrize("bad", [NAN, -INF])
def test_a_mask_is_not_named(bad: float, tmp_path: Path) -> None:
    def mask(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        return loss + bad if batch_idx == 2 else loss

    batches = [{**batch, "mask": torch.tensor([0.0, -INF])} for batch in make_batches(3)]
    trainer = make_trainer(tmp_path, NaNDetector(), accumulate_grad_batches=3)
    error = error_of(trainer, make_net(mask), batches)
    (origin,) = error.origins
    assert (origin.batch_idx, origin.micro_batch) == (2, 2)
    assert [finding.kind for finding in origin.findings] == ["loss", "batch"]
    assert error.first is not None
    assert error.first.kind == "loss"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_are_named_behind_a_checkpoint(use_reentrant: bool, tmp_path: Path) -> None:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return BadBackward.apply(net.head(x))  # type: ignore[no-untyped-call,no-any-return]

        x = net.body(batch["x"])
        return checkpoint(block, x, use_reentrant=use_reentrant).sum()  # type: ignore[no-any-return]

    error = error_of(make_trainer(tmp_path, NaNDetector()), make_net(hook), make_batches(2))
    assert error.first is not None
    assert error.first.kind == "gradient"


def test_a_compiled_network_is_looked_into(tmp_path: Path) -> None:
    module = Loose(lambda batch: batch)
    module.last = torch.compile(nn.Sequential(nn.Linear(3, 1), nn.Tanh()), backend="eager")  # type: ignore[assignment]
    error = error_of(make_trainer(tmp_path, NaNDetector()), module, [GOOD, BAD])
    assert error.step == 1
    assert [finding.kind for finding in error.origins[0].findings] == [
        "batch",
        "activation",
        "loss",
    ]


def test_what_only_autocast_cannot_hold_is_named(tmp_path: Path) -> None:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        # below the largest float32 and above the largest bfloat16
        large = torch.tensor([[3.4e38 if batch_idx == 1 else 1.0, 0.0, 0.0, 0.0]])
        return loss + 1e-38 * net.head(large).float().sum()  # type: ignore[no-any-return]

    plain = make_trainer(tmp_path, NaNDetector())
    fit(plain, make_net(hook), make_batches(3))
    trainer = make_trainer(tmp_path, NaNDetector(), precision="bf16-mixed")
    error = error_of(trainer, make_net(hook), make_batches(3))
    assert error.step == 1
    assert error.first is not None
    assert error.first.name == "output of last (Linear)"
    assert error.first.before.startswith("input of last (Linear) in [0, 3.4e+38]")


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.rand, lambda: torch.rand(()).item()],
    ids=["python", "numpy", "torch"],
)
def test_everything_is_drawn_as_it_was(draw: Callable[[], float], tmp_path: Path) -> None:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        net.drawn = [*getattr(net, "drawn", []), torch.rand(3).tolist(), draw()]  # type: ignore[assignment]
        lucky = batch_idx > 12 and draw() < 0.2
        return loss * NAN if lucky else loss

    net = make_net(hook, dropout=0.5)
    error = error_of(make_trainer(tmp_path, NaNDetector()), net, make_batches(60))
    assert error.first is not None
    assert error.first.kind == "loss"
    drawn: Any = net.drawn
    assert drawn[-2:] == drawn[-4:-2]
    assert len(drawn) == 2 * (error.step + 2)


def test_buffers_are_as_they_were(tmp_path: Path) -> None:
    def counting(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        count: Any = net.count
        count += 1
        return loss * NAN if count == 3 else loss

    net = make_net(counting)
    net.register_buffer("count", torch.zeros(()))
    trainer = make_trainer(tmp_path, NaNDetector(), accumulate_grad_batches=2)
    error = error_of(trainer, net, make_batches(4))
    assert f"{error.first}".startswith("loss: 1 nan of 1")
    assert error.origins[0].batch_idx == 2
    assert net.count == 2
