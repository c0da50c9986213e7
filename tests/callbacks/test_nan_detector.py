"""What follows an alarm, what is none, and what is refused."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lightning_recipes import NaNDetector, NonFiniteError
from tests.callbacks.faulty import (
    INF,
    NAN,
    BadBackward,
    Net,
    at_batch,
    error_of,
    fit,
    loader,
    make_batches,
    make_net,
    make_trainer,
    zero_root,
)
from tests.callbacks.matrix import first_difference


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
    constant = at_batch(2, lambda net, loss: loss + INF)
    backward = at_batch(2, zero_root)
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


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")  # once in a process
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
    detector = NaNDetector()
    names = ("skipped_steps", "skips_in_a_row", "overflows", "overflows_in_a_row")
    state = {"version": 1, **{name: number for number, name in enumerate(names, start=3)}}
    detector.load_state_dict(state)
    assert (detector.skipped_steps, detector.overflows) == (3, 5)
    assert detector.state_dict() == state


def test_a_trainer_can_be_used_again_after_the_error(tmp_path: Path) -> None:
    detector = NaNDetector()
    trainer = make_trainer(tmp_path, detector)
    with pytest.raises(NonFiniteError):
        fit(trainer, make_net(), make_batches(3, [1]))
    assert not detector._window.micro_batches
    fit(trainer, make_net(), make_batches(3))
    assert "save_checkpoint" not in vars(trainer)


def test_no_batch_stays_in_memory_once_its_step_is_made(tmp_path: Path) -> None:
    held: list[int] = []

    class Count(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            held.append(len(detector._window.micro_batches))

    detector = NaNDetector()
    trainer = make_trainer(tmp_path, detector, Count(), accumulate_grad_batches=4)
    fit(trainer, make_net(), make_batches(6))  # a window of four, and a leftover one of two
    assert held == [0]
