import csv
import io
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateMonitor
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset, RandomIterableDataset
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_recipes import (
    ResumableDataLoader,
    ResumeCheckpoint,
    WarmupCosine,
    WarmupCosineLR,
    simulate,
)
from tests.by_hand import float16
from tests.ranks import run_trainer_ranks

# Of DESIGN: base 1, warmup 4, total 10.
TABLE = [0.25, 0.5, 0.75, 1, 1, 0.933, 0.75, 0.5, 0.25, 0.067]


class TwoGroups(BoringModel):
    """A linear layer whose bias learns ten times faster."""

    def configure_optimizers(self) -> Any:
        weight, bias = [self.layer.weight], [self.layer.bias]
        groups: list[dict[str, Any]] = [{"params": weight}, {"params": bias, "lr": 10.0}]
        return torch.optim.SGD(groups, lr=1.0)


class Rates(Callback):
    """The learning rates that each optimizer step used."""

    def __init__(self) -> None:
        self.of_steps: list[list[float]] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.of_steps.append([group["lr"] for group in optimizer.param_groups])


def make_trainer(*callbacks: Callback, **kwargs: Any) -> Trainer:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
    }
    return Trainer(callbacks=list(callbacks), **{**quiet, **kwargs})


def train_loader(num_batches: int) -> DataLoader[Any]:
    return DataLoader(RandomDataset(32, num_batches), batch_size=1)


def fit(num_batches: int, **kwargs: Any) -> list[list[float]]:
    rates = Rates()
    callback = WarmupCosineLR(warmup=kwargs.pop("warmup", 4))
    make_trainer(callback, rates, **kwargs).fit(TwoGroups(), train_loader(num_batches))
    return rates.of_steps


def first_group(of_steps: list[list[float]]) -> list[float]:
    return [round(rates[0], 3) for rates in of_steps]


def test_uses_the_table_and_groups_keep_their_ratio() -> None:
    of_steps = fit(5, max_epochs=2)
    assert first_group(of_steps) == TABLE
    assert all(bias == pytest.approx(10 * weight) for weight, bias in of_steps)


def test_unit_is_the_optimizer_step_under_accumulation() -> None:
    assert first_group(fit(20, max_epochs=2, accumulate_grad_batches=4)) == TABLE
    # 18 batches an epoch leave a window of 2, which is a step too
    assert first_group(fit(18, max_epochs=2, accumulate_grad_batches=4)) == TABLE


def test_horizon_knows_max_steps_and_limits() -> None:
    assert first_group(fit(100, max_steps=10)) == TABLE
    assert first_group(fit(100, max_epochs=2, limit_train_batches=5)) == TABLE


def test_horizon_knows_a_schedule_of_accumulation() -> None:
    # 12 batches are 6 steps in the first epoch and 4 in the second
    rates, varying = Rates(), GradientAccumulationScheduler({0: 2, 1: 3})
    trainer = make_trainer(varying, WarmupCosineLR(warmup=4), rates, max_epochs=2)
    trainer.fit(TwoGroups(), train_loader(12))
    assert first_group(rates.of_steps) == TABLE


def test_warmup_as_a_share() -> None:
    assert first_group(fit(5, max_epochs=2, warmup=0.4)) == TABLE


def test_floor_holds_past_a_given_horizon() -> None:
    rates = Rates()
    callback = WarmupCosineLR(warmup=4, total_steps=10, min_ratio=0.5)
    make_trainer(callback, rates, max_steps=14).fit(TwoGroups(), train_loader(14))
    assert first_group(rates.of_steps)[10:] == [0.5] * 4


def fit_on_a_rank() -> list[float]:
    return first_group(fit(10, max_epochs=2, devices=2, strategy="ddp"))


def test_two_ranks_have_the_same_rates() -> None:
    # 10 samples are 5 steps of 2 ranks
    assert run_trainer_ranks(fit_on_a_rank) == [TABLE, TABLE]


def test_second_fit_goes_on_without_a_second_warmup() -> None:
    rates = Rates()
    trainer = make_trainer(WarmupCosineLR(warmup=4, total_steps=10), rates, max_epochs=1)
    module = TwoGroups()
    trainer.fit(module, train_loader(5))
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, train_loader(5))
    assert first_group(rates.of_steps) == TABLE


def test_resume_goes_on(tmp_path: Path) -> None:
    rates, path = Rates(), tmp_path / "half.ckpt"
    first = make_trainer(WarmupCosineLR(warmup=4, total_steps=10), rates, max_epochs=1)
    first.fit(TwoGroups(), train_loader(5))
    first.save_checkpoint(path)
    second = make_trainer(WarmupCosineLR(warmup=4), rates, max_epochs=2)
    second.fit(TwoGroups(), train_loader(5), ckpt_path=str(path))
    assert first_group(rates.of_steps) == TABLE


def test_another_horizon_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "half.ckpt"
    first = make_trainer(WarmupCosineLR(warmup=2), max_epochs=1)
    first.fit(TwoGroups(), train_loader(5))
    first.save_checkpoint(path)
    longer = make_trainer(WarmupCosineLR(warmup=2), max_epochs=2)
    with pytest.raises(ValueError, match=r"'total_steps': 5.*'total_steps': 10"):
        longer.fit(TwoGroups(), train_loader(5), ckpt_path=str(path))


def test_learning_rate_monitor_sees_it(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    monitor = LearningRateMonitor()
    trainer = make_trainer(
        WarmupCosineLR(warmup=4), monitor, logger=logger, max_epochs=2, log_every_n_steps=1
    )
    trainer.fit(TwoGroups(), train_loader(5))
    with Path(logger.log_dir, "metrics.csv").open() as file:
        rates = [float(row["lr-SGD/pg1"]) for row in csv.DictReader(file)]
    assert [round(rate, 3) for rate in rates] == TABLE


def test_unknown_horizon_is_an_error() -> None:
    stream = DataLoader(RandomIterableDataset(32, 8))
    for kwargs in ({"max_epochs": -1}, {"max_epochs": 2}):
        loader = stream if kwargs["max_epochs"] == 2 else train_loader(8)
        with pytest.raises(MisconfigurationException, match="max_steps"):
            make_trainer(WarmupCosineLR(), **kwargs).fit(TwoGroups(), loader)


def test_two_owners_are_an_error() -> None:
    # BoringModel brings a StepLR
    with pytest.raises(MisconfigurationException, match=r"StepLR.*BoringModel"):
        make_trainer(WarmupCosineLR(), max_epochs=1).fit(BoringModel(), train_loader(8))
    with pytest.raises(MisconfigurationException, match="WarmupCosine"):
        make_trainer(WarmupCosineLR(), WarmupCosineLR(), max_epochs=1).fit(
            TwoGroups(), train_loader(8)
        )


def test_manual_optimization_is_an_error() -> None:
    module = TwoGroups()
    module.automatic_optimization = False
    with pytest.raises(MisconfigurationException, match="automatic_optimization=False"):
        make_trainer(WarmupCosineLR(), max_epochs=1).fit(module, train_loader(8))


def test_warmup_that_takes_all_steps_is_an_error() -> None:
    with pytest.raises(ValueError, match="10 and 10"):
        fit(5, max_epochs=2, warmup=10)


@pytest.mark.parametrize(
    "kwargs", [{"warmup": -1}, {"warmup": 1.5}, {"min_ratio": 2.0}, {"total_steps": 0}]
)
def test_bad_arguments_are_named_at_construction(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        WarmupCosineLR(**kwargs)


def test_state_in_the_checkpoint_is_plain(tmp_path: Path) -> None:
    trainer = make_trainer(WarmupCosineLR(warmup=2), max_epochs=1)
    trainer.fit(TwoGroups(), train_loader(5))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    content = io.BytesIO((tmp_path / "run.ckpt").read_bytes())
    (state,) = torch.load(content, weights_only=True)["lr_schedulers"]
    assert state["last_epoch"] == 5


def test_longer_run_can_replan(tmp_path: Path) -> None:
    path, rates = tmp_path / "half.ckpt", Rates()
    first = make_trainer(WarmupCosineLR(warmup=4, total_steps=10), max_epochs=1)
    first.fit(TwoGroups(), train_loader(5))
    first.save_checkpoint(path)
    longer = make_trainer(WarmupCosineLR(warmup=4, on_new_horizon="replan"), rates, max_epochs=3)
    longer.fit(TwoGroups(), train_loader(5), ckpt_path=str(path))
    used = [rate for rate, _ in rates.of_steps]
    # at step 5 of 10 the factor is .933; from there a half cosine to step 15
    expected = [0.9330127 * 0.5 * (1 + math.cos(math.pi * k / 10)) for k in range(10)]
    assert used == pytest.approx(expected)


# --- steps that were not taken --------------------------------------------------------------------


class Overflowing(BoringModel):
    """Float16 gradients overflow at these batches of an epoch, whatever the scale is."""

    def __init__(self, at: tuple[int, ...], *, fused: bool) -> None:
        super().__init__()
        self.at = at
        self.fused = fused

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)["loss"]  # type: ignore[index]
        factor = float("inf") if batch_idx in self.at else 1.0
        loss.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=self.fused)


def rates_by_hand(skipped: list[bool], num_steps: int = 10) -> list[float]:
    """The table's curve, where a step that is not taken leaves the rate as it is."""
    curve = partial(WarmupCosine, warmup_steps=4, total_steps=num_steps)
    rates = simulate(curve, len(skipped), base_lr=0.01)
    return [rates[step - sum(skipped[:step])] for step in range(len(skipped))]


SKIPPED = [batch in (0, 1, 3) for batch in range(5)]


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_scaler_skips_use_no_warmup(fused: bool) -> None:
    rates = Rates()
    trainer = make_trainer(WarmupCosineLR(warmup=4), rates, max_epochs=2, **float16(1024.0))
    trainer.fit(Overflowing((0, 1, 3), fused=fused), train_loader(5))
    assert [rate for (rate,) in rates.of_steps] == rates_by_hand(SKIPPED * 2)
    assert trainer.global_step == 10


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_steps_without_a_gradient_use_no_warmup() -> None:
    class Missing(TwoGroups):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx in (0, 3) else super().training_step(batch, batch_idx)

    rates = Rates()
    make_trainer(WarmupCosineLR(warmup=4), rates, max_epochs=2).fit(Missing(), train_loader(5))
    missing = [batch in (0, 3) for batch in range(5)] * 2
    assert [100 * rate for rate in rates_by_hand(missing)] == pytest.approx(
        [rate for rate, _ in rates.of_steps]
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("moment", [1, 3, 5, 6])
def test_a_resume_remembers_the_steps_not_taken(tmp_path: Path, fused: bool, moment: int) -> None:
    def run(root: Path, ckpt_path: Path | None) -> list[float]:
        rates = Rates()
        trainer = make_trainer(
            ResumeCheckpoint(every_n_steps=1, keep_last=None),
            WarmupCosineLR(warmup=4),
            rates,
            max_epochs=2,
            default_root_dir=str(root),
            **float16(1024.0),
        )
        loader = ResumableDataLoader(RandomDataset(32, 5), 1)
        path = None if ckpt_path is None else str(ckpt_path)
        trainer.fit(Overflowing((0, 1, 3), fused=fused), loader, ckpt_path=path)
        return [rate for (rate,) in rates.of_steps]

    whole = run(tmp_path, None)
    saved = tmp_path / "resume" / f"step={moment:09d}.ckpt"
    assert run(tmp_path / "resumed", saved) == whole[moment:]
    assert whole == rates_by_hand(SKIPPED * 2)


@pytest.mark.parametrize("fused", [False, True])
def test_second_fit_goes_on_with_the_curve_after_skipped_steps(fused: bool) -> None:
    rates = Rates()
    callback = WarmupCosineLR(warmup=4, total_steps=10)
    trainer = make_trainer(callback, rates, max_epochs=1, **float16(1024.0))
    module = Overflowing((0, 1, 3), fused=fused)
    trainer.fit(module, train_loader(5))
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, train_loader(5))
    assert [rate for (rate,) in rates.of_steps] == rates_by_hand(SKIPPED * 3)
