"""What is caught, what it is called, and what is refused."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_recipes import NaNDetector, NonFiniteError, Padded
from tests.callbacks.faulty import (
    INF,
    NAN,
    BadBackward,
    Net,
    error_of,
    fit,
    loader,
    make_batches,
    make_net,
    make_trainer,
)
from tests.callbacks.matrix import first_difference

Hook = Callable[[Net, Any, int, Tensor], Any]


def at_batch(number: int, change: Callable[[Net, Tensor], Tensor]) -> Hook:
    """Return a hook that changes the loss of one batch of each epoch."""

    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        return change(net, loss) if batch_idx == number else loss

    return hook


def forget_parameter(net: Net, loss: Tensor) -> Tensor:
    with torch.no_grad():
        net.last.bias.fill_(NAN)
    return loss


def zero_root(net: Net, loss: Tensor) -> Tensor:
    weight = net.last.weight
    return loss + (weight - weight).square().sum().sqrt()


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


def test_dropout_is_drawn_as_it_was(tmp_path: Path) -> None:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        net.drawn = [*getattr(net, "drawn", []), torch.rand(3).tolist()]  # type: ignore[assignment]
        lucky = torch.rand(()).item() < 0.2
        return loss * NAN if lucky else loss

    net = make_net(hook, dropout=0.5)
    error = error_of(make_trainer(tmp_path, NaNDetector()), net, make_batches(60))
    assert error.first is not None
    assert error.first.kind == "loss"
    drawn: Any = net.drawn
    assert drawn[-1] == drawn[-2]
    assert len(drawn) == error.step + 2


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


def test_warns_once_and_takes_the_step(tmp_path: Path) -> None:
    net = make_net()
    with pytest.warns(UserWarning, match=r"batch 1: began with batch field \['x'\]") as caught:
        fit(make_trainer(tmp_path, NaNDetector(policy="warn")), net, make_batches(4, [1]))
    texts = [str(warning.message) for warning in caught]
    assert sum("not finite" in text for text in texts) == 1
    assert all(p.isnan().any() for p in net.parameters())


class Careful(torch.optim.SGD):
    """Takes a gradient that is not finite for zero."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.nan_to_num_(0, 0, 0)
        super().step()
        return loss


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    results = []
    for detectors in ([NaNDetector(policy="warn")], []):
        hook = at_batch(1, lambda net, loss: BadBackward.apply(loss))  # type: ignore[no-untyped-call]
        net = make_net(hook, partial(Careful, lr=0.1), dropout=0.5)
        net.scores.persistent(True)
        trainer = make_trainer(
            tmp_path / str(len(detectors)), *detectors, max_epochs=2, accumulate_grad_batches=2
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(trainer, net, make_batches(6))
        alarms = [w for w in caught if "batch 1 (micro-batch 2 of 2): began" in str(w.message)]
        assert len(alarms) == 2 * len(detectors)  # in each epoch
        rows = next(tmp_path.glob(f"{len(detectors)}/lightning_logs/version_0/*.csv")).read_text()
        states = [rows, net.state_dict(), dict(trainer.callback_metrics), torch.get_rng_state()]
        results.append(states)
    assert first_difference(*results) is None


def test_each_check_looks_at_its_own(tmp_path: Path) -> None:
    constant, backward = (
        HOOKS[name][0] for name in ("a constant that no gradient sees", "a root of zero")
    )
    for hook, check in [(constant, ["gradients"]), (backward, ["loss"])]:
        fit(make_trainer(tmp_path, NaNDetector(check=check)), make_net(hook), make_batches(3))  # type: ignore[arg-type]
    for hook, check in [(constant, ["loss"]), (backward, ["gradients"])]:
        detector = NaNDetector(check=check)  # type: ignore[arg-type]
        assert error_of(make_trainer(tmp_path, detector), make_net(hook), make_batches(3)).step == 2


def test_a_norm_that_overflows_is_no_alarm(tmp_path: Path) -> None:
    # 1e30 squared is infinite in float32, and every gradient is finite
    hook = at_batch(1, lambda net, loss: loss + 1e30 * net.last.bias.sum())
    net = make_net(hook, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
    fit(make_trainer(tmp_path, NaNDetector()), net, make_batches(3))


def test_a_validation_metric_is_a_warning(tmp_path: Path) -> None:
    class Validated(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", batch["x"].sum(), batch_size=4)
            self.log("fine", 1.0, batch_size=4)

    def run(train_bad: list[int], val_bad: list[int]) -> None:
        trainer = make_trainer(tmp_path, NaNDetector(policy="skip"))
        val = loader(make_batches(2, val_bad))
        fit(trainer, Validated(), make_batches(3, train_bad), val_dataloaders=val)

    with pytest.warns(UserWarning, match=r"step 3 of epoch 0 .* not finite: val\.$"):
        run([], [1])
    # what training logged is no matter of the validation
    with pytest.warns(UserWarning, match="is skipped") as caught:
        run([2], [])
    assert not [w for w in caught if "After the validation" in str(w.message)]


class ByHand(LightningModule):
    """Two optimizers, each over half of the weights."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.two = nn.Linear(3, 1), nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for optimizer, part in zip(optimizers, (self.one, self.two), strict=True):
            loss = part(batch["x"]).square().mean()
            if batch_idx == 2 and part is self.two:
                loss = loss * NAN
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        parts = (self.one, self.two)
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts], []


def test_optimization_by_hand_is_watched_without_a_replay(tmp_path: Path) -> None:
    module = ByHand()
    error = error_of(make_trainer(tmp_path, NaNDetector()), module, make_batches(4))
    assert f"{error.first}" == "loss: 1 nan of 1"
    assert [origin.batch_idx for origin in error.origins] == [2]
    assert error.step == 5  # two of them in each batch, and the second is bad
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    with pytest.warns(UserWarning, match="batch 2: began with loss"):
        fit(make_trainer(tmp_path, NaNDetector(policy="warn")), ByHand(), make_batches(3))
    with pytest.raises(MisconfigurationException, match="manual optimization"):
        fit(make_trainer(tmp_path, NaNDetector(policy="skip")), ByHand(), make_batches(1))


def test_lbfgs_and_steps_without_a_loss_are_fine(tmp_path: Path) -> None:
    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)

    def nothing(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor | None:
        return None if batch_idx == 1 else loss

    fit(make_trainer(tmp_path, NaNDetector()), make_net(optimizer=lbfgs), make_batches(3))
    error = error_of(
        make_trainer(tmp_path, NaNDetector()), make_net(optimizer=lbfgs), make_batches(3, [1])
    )
    assert f"{error.first}".startswith("batch field ['x']")
    with pytest.warns(UserWarning, match="`training_step` returned `None`"):
        fit(make_trainer(tmp_path, NaNDetector()), make_net(nothing), make_batches(3))


def test_a_module_without_an_optimizer_is_left_in_peace(tmp_path: Path) -> None:
    class Fixed(LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            return None

        def configure_optimizers(self) -> None:
            return None

    with pytest.warns(UserWarning, match="returned `None`"):
        fit(make_trainer(tmp_path, NaNDetector()), Fixed(), make_batches(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "Raise"}, "policy must be one of .*, got 'Raise'"),
        ({"max_skips": 0}, "max_skips must be >= 1, got 0"),
        ({"every_n_steps": 0}, "every_n_steps must be >= 1, got 0"),
        ({"max_overflows": 0}, "max_overflows must be >= 1, got 0"),
        ({"min_loss_scale": 0.0}, "min_loss_scale must be > 0, got 0.0"),
        ({"min_loss_scale": NAN}, "min_loss_scale must be > 0, got nan"),
        ({"check": "loss"}, "check must hold one or both of .*, got 'loss'"),
        ({"check": []}, "check must hold one or both"),
        ({"check": ["loss", "weights"]}, "check must hold one or both"),
        ({"policy": "skip", "every_n_steps": 2}, "needs every_n_steps=1, got 2"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NaNDetector(**arguments)


def test_counts_go_through_a_checkpoint() -> None:
    detector, other = NaNDetector(), NaNDetector()
    detector.skipped_steps, detector.overflows = 3, 4
    other.load_state_dict(detector.state_dict())
    assert (other.skipped_steps, other.overflows) == (3, 4)
    assert other.state_dict() == detector.state_dict()


def test_a_trainer_can_be_used_again_after_the_error(tmp_path: Path) -> None:
    detector = NaNDetector()
    trainer = make_trainer(tmp_path, detector)
    with pytest.raises(NonFiniteError):
        fit(trainer, make_net(), make_batches(3, [1]))
    assert not detector._window.micro_batches
    fit(trainer, make_net(), make_batches(3))
    assert "save_checkpoint" not in vars(trainer)
