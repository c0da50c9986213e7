import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_recipes import LossScaleMonitor, ResumeCheckpoint
from tests.by_hand import NUM_BATCHES, Plain, fit, float16, read_rows

GROWTH_INTERVAL = 3


def sgd(*, fused: bool) -> Any:
    def build(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1 * lr, fused=fused)

    return build


class Overflowing(Plain):
    """Its gradients overflow at these batches, whatever the scale is."""

    def __init__(self, at: tuple[int, ...], *, fused: bool = False) -> None:
        super().__init__(sgd(fused=fused))
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        factor = float("inf") if batch_idx in self.at else 1.0
        loss = super().training_step(batch, batch_idx)
        loss.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
        return loss


def rows_by_hand(overflows: list[bool], scale: float) -> list[dict[str, float]]:
    """The rule of GradScaler: halve after an overflow, double after so many steps without."""
    rows, tracker, skipped = [], 0, 0
    for step, is_overflow in enumerate(overflows):
        rows.append(
            {
                "step": step,
                "loss_scale": scale,
                "loss_scale/steps_to_grow": GROWTH_INTERVAL - tracker,
                "loss_scale/skipped_steps": skipped,
            }
        )
        skipped += is_overflow
        tracker = 0 if is_overflow else tracker + 1
        scale *= 0.5 if is_overflow else 1.0
        if tracker == GROWTH_INTERVAL:
            scale, tracker = 2 * scale, 0
    return rows


@pytest.mark.parametrize("fused", [False, True])
def test_rows_are_those_by_hand(tmp_path: Path, fused: bool) -> None:
    at, monitor = (0, 1, 6), LossScaleMonitor()
    precision = float16(64.0, growth_interval=GROWTH_INTERVAL)
    trainer, rows = fit(tmp_path, monitor, module=Overflowing(at, fused=fused), **precision)
    assert rows == rows_by_hand([batch in at for batch in range(NUM_BATCHES)] * 2, 64.0)
    assert monitor.skipped_steps == 2 * len(at)
    assert trainer.callback_metrics["loss_scale"].item() == rows[-1]["loss_scale"]


def test_the_unit_is_the_optimizer_step(tmp_path: Path) -> None:
    """Windows of 4, 4 and 2 are 3 steps an epoch; of 6 each other one is logged."""
    monitor = LossScaleMonitor(every_n_steps=2)
    precision = float16(64.0, growth_interval=GROWTH_INTERVAL)
    module = Overflowing((5,))
    _, rows = fit(tmp_path, monitor, module=module, accumulate_grad_batches=4, **precision)
    assert rows == rows_by_hand([False, True, False] * 2, 64.0)[1::2]


@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_run_goes_on_counting(tmp_path: Path, fused: bool) -> None:
    def run(root: Path, ckpt_path: Path | None = None) -> LossScaleMonitor:
        monitor = LossScaleMonitor()
        saving = ResumeCheckpoint(every_n_steps=1, keep_last=None)
        options = float16(64.0, growth_interval=GROWTH_INTERVAL)
        fit(
            root,
            saving,
            monitor,
            module=Overflowing((0, 6), fused=fused),
            default_root_dir=str(root),
            ckpt_path=ckpt_path,
            **options,
        )
        return monitor

    whole = run(tmp_path / "whole")
    rows = read_rows(tmp_path / "whole")
    for step in (1, 7, 10):
        root = tmp_path / str(step)
        resumed = run(root, tmp_path / "whole" / "resume" / f"step={step:09d}.ckpt")
        assert read_rows(root) == rows[step:]
        assert resumed.skipped_steps == whole.skipped_steps == 4


class Interrupt(Callback):
    """Stops the run in an untidy way."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 4:
            raise RuntimeError("Enough.")


def test_a_fit_after_one_that_failed_goes_on_counting() -> None:
    monitor = LossScaleMonitor()
    with pytest.raises(RuntimeError, match="Enough"):
        fit(None, monitor, Interrupt(), module=Overflowing((0, 6)), **float16(64.0))
    assert monitor.skipped_steps == 1
    fit(None, monitor, module=Overflowing((0, 6)), max_epochs=1, **float16(64.0))
    assert monitor.skipped_steps == 3


def test_a_state_replaces_what_a_failed_fit_has_counted() -> None:
    monitor = LossScaleMonitor()
    with pytest.raises(RuntimeError, match="Enough"):
        fit(None, monitor, Interrupt(), module=Overflowing((0,)), **float16(64.0))
    monitor.load_state_dict({"version": 1, "skipped_steps": 7})
    assert monitor.skipped_steps == 7


# --- warnings -------------------------------------------------------------------------------------


def test_warns_each_time_the_scale_falls_too_low() -> None:
    # 16, 8, 4, 2 and up again by each step; then the same in the second epoch
    module = Overflowing((0, 1, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(
            None,
            LossScaleMonitor(min_scale=5.0),
            module=module,
            **float16(16.0, growth_interval=2),
        )
    texts = [str(w.message) for w in caught if "loss scale has fallen" in str(w.message)]
    # 10 batches: 3 halvings, 7 steps without overflow double 3 times
    assert [text.split(",")[0] for text in texts] == ["The loss scale has fallen to 4"] * 2
    assert "min_scale=5" in texts[0]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_without_a_scaler_there_is_nothing_to_log(tmp_path: Path, precision: str) -> None:
    monitor = LossScaleMonitor()
    with pytest.warns(UserWarning, match=f"precision {precision} has no loss scale"):
        trainer, _ = fit(None, monitor, module=Plain(), precision=precision)
    assert not trainer.callback_metrics
    assert monitor.skipped_steps == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_scale": 0.0}, "min_scale must be > 0, got 0.0"),
        ({"min_scale": float("nan")}, "min_scale must be > 0, got nan"),
        ({"every_n_steps": 0}, "every_n_steps must be >= 1 or None, got 0"),
    ],
)
def test_bad_arguments_are_named_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossScaleMonitor(**options)
