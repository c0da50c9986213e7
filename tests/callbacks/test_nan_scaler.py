"""Overflows of float16 are the scaler's business, until it collapses; NaN is not."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_recipes import NaNDetector
from tests.callbacks.faulty import (
    NAN,
    Net,
    error_of,
    fit,
    float16,
    make_batches,
    make_net,
    make_trainer,
)

each_kind = pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])


def steep(factor: float) -> Any:
    """Return a hook that adds a gradient of ``factor`` in float16, of a finite loss."""

    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
        return loss + factor * net.head(torch.zeros(1, 4)).float().sum()

    return hook


def adamw(fused: bool) -> Any:
    return partial(torch.optim.AdamW, lr=0.01, fused=fused)


@each_kind
@pytest.mark.parametrize("init_scale", [2.0**16, 2.0**20])
def test_an_overflow_is_counted_and_no_alarm(
    init_scale: float, fused: bool, tmp_path: Path
) -> None:
    # 64 * scale fits into float16, whose largest number is 65504, up to a scale of 512
    net, detector = make_net(steep(64.0), adamw(fused)), NaNDetector(policy="skip")
    trainer = make_trainer(tmp_path, detector, max_epochs=2, **float16(init_scale))
    fit(trainer, net, make_batches(8))
    precision: Any = trainer.precision_plugin
    halvings = torch.tensor(init_scale / precision.scaler.get_scale()).log2()
    assert detector.overflows == halvings >= 6
    assert detector.skipped_steps == 0
    assert trainer.callback_metrics["nonfinite/overflows"] == halvings
    assert all(parameter.isfinite().all() for parameter in net.parameters())


def test_a_loss_in_float16_overflows_likewise(tmp_path: Path) -> None:
    def in_float16(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
        # a scalar times the scale would be a float32
        loss = net.head(torch.zeros(1, 4))[0]
        assert loss.dtype == torch.float16
        return loss - loss.detach() + 4.0

    detector = NaNDetector()
    fit(make_trainer(tmp_path, detector, **float16()), make_net(in_float16), make_batches(6))
    assert detector.overflows == 3  # 4 * 2**13 is the first that float16 holds


@each_kind
@pytest.mark.parametrize(
    ("limits", "step"), [({"min_loss_scale": 2.0**12}, 5), ({"max_overflows": 3}, 2)]
)
def test_a_collapse_is_an_error(
    limits: dict[str, Any], step: int, fused: bool, tmp_path: Path
) -> None:
    detector = NaNDetector(**limits)
    net = make_net(steep(2.0**20), adamw(fused))
    # 2**16 and halved at each step: at step 5 it is 2**11
    error = error_of(make_trainer(tmp_path, detector, **float16()), net, make_batches(9))
    assert error.step == step
    assert f"it is {2.0 ** (16 - step):g} " in str(error)
    assert f"after {step + 1} overflows in a row" in str(error)
    assert error.first is not None
    assert error.first.kind == "gradient"
    net = make_net(steep(2.0**20), adamw(fused))
    with pytest.warns(UserWarning, match="loss scale of float16 has collapsed"):
        fit(
            make_trainer(tmp_path, NaNDetector(policy="warn", **limits), **float16()),
            net,
            make_batches(9),
        )


@each_kind
def test_a_nan_loss_is_an_alarm(fused: bool, tmp_path: Path) -> None:
    detector = NaNDetector()
    net = make_net(None, adamw(fused))
    error = error_of(make_trainer(tmp_path, detector, **float16(2.0**8)), net, make_batches(4, [2]))
    assert error.step == 2
    assert f"{error.first}".startswith("batch field ['x']: 1 nan")
    assert detector.overflows == 0


def test_what_float16_cannot_hold_on_the_way_forward_is_named(tmp_path: Path) -> None:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
        large = torch.full((1, 4), 1e5 if batch_idx == 2 else 1.0)
        return loss + 0.0 * net.last(large).float().sum()

    trainer = make_trainer(tmp_path, NaNDetector(), **float16(2.0**8))
    error = error_of(trainer, make_net(hook), make_batches(4))
    assert error.step == 2
    assert error.first is not None
    assert error.first.name == "output of last (Linear)"
    assert error.first.before == "input of last (Linear) in [1e+05, 1e+05]"


def test_a_nan_between_two_looks_is_named_later(tmp_path: Path) -> None:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
        return loss * NAN if batch_idx == 1 else loss

    trainer = make_trainer(tmp_path, NaNDetector(every_n_steps=3), **float16(2.0**8))
    error = error_of(trainer, make_net(hook), make_batches(6))
    assert error.step == 1
    assert "the scaler has skipped it" in str(error)
    # an overflow there is none
    trainer = make_trainer(tmp_path, NaNDetector(every_n_steps=4), **float16(2.0**10))
    fit(trainer, make_net(steep(64.0)), make_batches(6))
