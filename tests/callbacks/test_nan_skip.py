"""Dropped steps leave nothing behind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_recipes import NaNDetector, NonFiniteError, ResumeCheckpoint, WarmupCosineLR
from tests.callbacks.faulty import (
    INF,
    NAN,
    SGD,
    Net,
    error_of,
    fit,
    float16,
    make_batches,
    make_net,
    make_trainer,
    without,
)

pytestmark = pytest.mark.filterwarnings("ignore:The loss or the gradients are not finite")

KEPT = ("loss_epoch", "largest", "total", "mean", "auroc", "accuracy", "precision", "recall")
ADAMW = partial(torch.optim.AdamW, lr=0.05)


def result(net: Net, trainer: Any) -> dict[str, Any]:
    """Return all that dropped batches must not change."""
    epoch_means = {name: trainer.callback_metrics[name] for name in KEPT}
    states = trainer.optimizers[0].state_dict()["state"]
    return {"module": net.state_dict(), "means": epoch_means, "optimizer": states}


@pytest.mark.parametrize(
    ("optimizer", "accumulate", "bad", "dropped"),
    [
        (SGD, 1, [0, 3], [0, 3]),
        (ADAMW, 1, [4, 5], [4, 5]),
        (ADAMW, 4, [4], [4, 5, 6, 7]),
        (SGD, 4, [9], [8, 9]),
        (SGD, 4, [1, 8], [0, 1, 2, 3, 8, 9]),
    ],
    ids=["first", "in a row", "window", "leftover", "first window and leftover"],
)
def test_is_a_run_over_the_other_batches(
    optimizer: Any, accumulate: int, bad: list[int], dropped: list[int], tmp_path: Path
) -> None:
    batches = make_batches(10, bad)
    results = []
    for data, detector in [
        (batches, NaNDetector(policy="skip")),
        (without(batches, *dropped), NaNDetector()),
    ]:
        net = make_net(optimizer=optimizer)
        trainer = make_trainer(tmp_path, detector, max_epochs=2, accumulate_grad_batches=accumulate)
        fit(trainer, net, data)
        results.append(result(net, trainer))
        assert detector.skipped_steps == (len(data) == 10) * 2 * len(
            {index // accumulate for index in dropped}
        )
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-7)


def nan_loss(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
    return loss * NAN if batch_idx == 2 else loss


def constant_loss(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
    return loss + INF if batch_idx == 2 else loss


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("hook", [nan_loss, constant_loss])
def test_a_scaler_drops_the_step_too(
    hook: Callable[..., Tensor], fused: bool, tmp_path: Path
) -> None:
    batches = make_batches(6)
    results = []
    for data, fault in [(batches, hook), (without(batches, 2), None)]:
        net = make_net(fault, optimizer=partial(ADAMW, fused=fused))
        detector = NaNDetector(policy="skip")
        trainer = make_trainer(tmp_path, detector, **float16(2.0**8))
        fit(trainer, net, data)
        results.append(result(net, trainer))
        assert detector.overflows == 0
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_counts_logs_and_says_so(tmp_path: Path) -> None:
    detector = NaNDetector(policy="skip")
    trainer = make_trainer(tmp_path, detector)
    with pytest.warns(UserWarning, match=r"\(optimizer step 4, epoch 0\)") as caught:
        fit(trainer, make_net(), make_batches(6, [1, 4]))
    said = [str(w.message) for w in caught if "is skipped" in str(w.message)]
    assert ["(2 so far)" in text for text in said] == [False, True]
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
    assert "nonfinite/skipped_steps" in rows
    assert trainer.callback_metrics["nonfinite/skipped_steps"] == 2


def test_gives_up_after_too_many_in_a_row(tmp_path: Path) -> None:
    batches = make_batches(9, [1, 2, 4, 5, 6])
    detector = NaNDetector(policy="skip", max_skips=3)
    error = error_of(make_trainer(tmp_path, detector), make_net(), batches)
    assert error.step == 6
    assert "for 3 steps in a row (max_skips)" in str(error)
    assert [origin.batch_idx for origin in error.origins] == [6]
    error = error_of(
        make_trainer(tmp_path, NaNDetector(policy="skip", max_skips=1)), make_net(), batches
    )
    assert error.step == 1


def test_a_warmup_does_not_count_a_dropped_step(tmp_path: Path) -> None:
    batches = make_batches(6, [1])
    rates = []
    for data in (batches, without(batches, 1)):
        net = make_net()
        warmup = WarmupCosineLR(warmup=3, total_steps=20)
        fit(make_trainer(tmp_path, NaNDetector(policy="skip"), warmup), net, data)
        rates.append(net.state_dict())
    torch.testing.assert_close(rates[0], rates[1], rtol=1e-7, atol=1e-7)


def test_goes_on_after_a_resume_whose_first_batch_is_bad(tmp_path: Path) -> None:
    def run(folder: str, **kwargs: Any) -> tuple[Net, Any, NaNDetector]:
        net, detector = make_net(optimizer=ADAMW, dropout=0.3), NaNDetector(policy="skip")
        keep = ResumeCheckpoint(every_n_steps=1, keep_last=None)
        trainer = make_trainer(tmp_path / folder, keep, detector)
        fit(trainer, net, make_batches(8, [2, 5]), **kwargs)
        return net, trainer, detector

    net, trainer, detector = run("whole")
    expected = result(net, trainer)
    for step in (3, 5, 6):
        (path,) = (tmp_path / "whole" / "resume").glob(f"*step={step:09d}*.ckpt")
        resumed_net, resumed, resumed_detector = run(f"at {step}", ckpt_path=str(path))
        torch.testing.assert_close(result(resumed_net, resumed), expected, rtol=0, atol=0)
        assert resumed_detector.state_dict() == detector.state_dict()
        assert resumed_detector.skipped_steps == 2


def test_the_error_leaves_the_module_of_the_step_before(tmp_path: Path) -> None:
    batches = make_batches(4, [3])
    stopped, expected = make_net(), make_net()
    with pytest.raises(NonFiniteError):
        fit(make_trainer(tmp_path, NaNDetector()), stopped, batches)
    fit(make_trainer(tmp_path), expected, batches[:3])
    torch.testing.assert_close(stopped.state_dict(), expected.state_dict(), rtol=0, atol=0)
