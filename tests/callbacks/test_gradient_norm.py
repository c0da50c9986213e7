import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from lightning_recipes import GradientNormMonitor, NaNDetector
from tests import project
from tests.by_hand import (
    NUM_BATCHES,
    ByHand,
    Plain,
    Recipe,
    Rows,
    fit,
    float16,
    make_data,
    make_trainer,
    read_rows,
    rows_by_hand,
)
from tests.ranks import run_trainer_ranks

ORDERS = [1.0, 2.0, math.inf]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a window left over": {"accumulate_grad_batches": 4},
    "clipped by norm": {"gradient_clip_val": 0.5},
    "clipped by value": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
    "clipped windows": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5},
}


def assert_rows(rows: Rows, expected: Rows, *, rel: float = 1e-4) -> None:
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, by_hand in zip(rows, expected, strict=True):
        assert row == pytest.approx(by_hand, rel=rel, abs=1e-7)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("module", [Plain, Recipe])
def test_rows_are_those_by_hand(
    tmp_path: Path, module: type[Plain | Recipe], case: str, order: float
) -> None:
    monitor = GradientNormMonitor(norm_type=order, by_module=1, update_ratio=True)
    _, rows = fit(tmp_path, monitor, module=module(), **CASES[case])
    assert_rows(rows, rows_by_hand(order=order, **CASES[case]))


def test_clipping_does_something_in_these_cases() -> None:
    for case, options in CASES.items():
        rows = rows_by_hand(**options)
        clipped = [row["grad_norm/clipped"] < 0.9 * row["grad_norm"] for row in rows]
        assert any(clipped) == ("clip" in case)


class Sharded(Recipe):
    """Its body and its head are split among the ranks."""

    def configure_model(self) -> None:
        assert self.device_mesh is not None
        fully_shard(self.body, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.head, mesh=self.device_mesh["data_parallel"])


WINDOWS: dict[str, Any] = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}


def _on_a_rank(root: str) -> list[dict[str, float]]:
    sharding = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    seen = []
    for module, strategy in (
        (Recipe(), "ddp_find_unused_parameters_true"),
        (Sharded(), sharding),
    ):
        trainer, _ = fit(
            Path(root, type(module).__name__),
            NaNDetector(),
            GradientNormMonitor(by_module=1, update_ratio=True),
            module=module,
            devices=2,
            strategy=strategy,
            **WINDOWS,
        )
        metrics = trainer.callback_metrics.items()
        seen.append({key: float(value) for key, value in metrics if "train" not in key})
    return seen


def test_two_ranks_have_the_norm_of_their_mean(tmp_path: Path) -> None:
    """Whole, and in shards. Two points of each rank are four together."""
    ranks = run_trainer_ranks(_on_a_rank, str(tmp_path))
    by_hand = rows_by_hand(
        batch_size=4,
        **WINDOWS,
    )
    last = {key: value for key, value in by_hand[-1].items() if key != "step"}
    for name in ("Recipe", "Sharded"):
        assert_rows(read_rows(tmp_path / name), by_hand)
    assert ranks[0] == ranks[1] == [pytest.approx(last, rel=1e-4)] * 2


def test_two_optimizers_by_hand_have_a_norm_each(tmp_path: Path) -> None:
    _, rows = fit(tmp_path, GradientNormMonitor(update_ratio=True), module=ByHand())
    expected = []
    for step, row in enumerate(rows_by_hand()):
        for index, module in enumerate(("body", "head")):
            key, ratio = f"grad_norm/optimizer_{index}", f"update_ratio/optimizer_{index}"
            expected.append(
                {
                    "step": 2 * step + index,
                    key: row[f"grad_norm/{module}"],
                    f"{key}/clipped": row[f"grad_norm/{module}"],
                    f"{ratio}/{module}": row[f"update_ratio/{module}"],
                    **({f"{ratio}/unused": 0.0} if index == 0 else {}),
                }
            )
    assert_rows(rows, expected)


def test_the_ratio_of_weights_that_are_all_zero() -> None:
    module = Plain()
    for parameter in (module.unused, *module.head.parameters()):
        torch.nn.init.zeros_(parameter)
    trainer, _ = fit(None, GradientNormMonitor(update_ratio=True), module=module, max_steps=1)
    ratios = {k: v.item() for k, v in trainer.callback_metrics.items() if k.startswith("update")}
    # with a head of 0 the body has no gradient
    expected = {"unused": 0.0, "body": 0.0, "head": math.inf}
    assert ratios == {f"update_ratio/{module}": ratio for module, ratio in expected.items()}


# --- float16 --------------------------------------------------------------------------------------


def adamw(*, fused: bool) -> Any:
    def build(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, fused=fused)

    return build


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, fused=True)


def adagrad(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=lr, fused=True)


OPTIMIZERS = {
    "adamw": adamw(fused=False),
    "fused adamw": adamw(fused=True),
    "fused sgd": sgd,
    "fused adagrad": adagrad,
}


@pytest.mark.parametrize("order", [2.0, math.inf])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_float16_has_the_norms_of_float32(
    tmp_path: Path, optimizer: str, clip: float | None, order: float
) -> None:
    logged = []
    for name, precision in (("float32", {}), ("float16", float16(1024.0))):
        monitor = GradientNormMonitor(norm_type=order, by_module=1, update_ratio=True)
        module = Recipe(OPTIMIZERS[optimizer])
        options = {"gradient_clip_val": clip, **precision}
        logged.append(fit(tmp_path / name, monitor, module=module, max_epochs=1, **options)[1])
    assert_rows(logged[1], logged[0], rel=0.01)
    clipped = [
        row[k] / row[k.removesuffix("/clipped")] for row in logged[1] for k in row if "/cl" in k
    ]
    assert (min(clipped) < 0.9) == (clip is not None)


def test_a_fused_optimizer_is_clipped_on_the_true_scale() -> None:
    weights = []
    for fused in (False, True):
        module = Recipe(adamw(fused=fused))
        fit(None, module=module, gradient_clip_val=0.5, **float16(1024.0))
        weights.append(module.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["adamw", "fused adamw"])
def test_a_step_that_the_scaler_skips_is_logged_once(
    tmp_path: Path, optimizer: str, clip: float | None
) -> None:
    """A scale of 2^20 overflows, and halves until it does not."""
    module = Recipe(OPTIMIZERS[optimizer])
    monitor = GradientNormMonitor(every_n_steps=2)
    options = {"gradient_clip_val": clip, **float16(2.0**20)}
    _, rows = fit(tmp_path, monitor, module=module, **options)
    assert [row["step"] for row in rows] == list(range(1, 2 * NUM_BATCHES, 2))
    is_finite = [math.isfinite(row["grad_norm"]) for row in rows]
    assert not is_finite[0]
    assert any(is_finite)
    assert [math.isfinite(row.get("grad_norm/clipped", math.inf)) for row in rows] == is_finite
    assert all(parameter.isfinite().all() for parameter in module.parameters())


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_trainer", "of_monitor"), [(3, None), (50, 3), (1, 3)])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_rows_are_evenly_spaced(
    tmp_path: Path, of_trainer: int, of_monitor: int | None, accumulate: int
) -> None:
    """Windows of 3, 3, 3 and 1 are 4 steps an epoch."""
    monitor = GradientNormMonitor(every_n_steps=of_monitor)
    trainer, rows = fit(
        tmp_path,
        monitor,
        module=Recipe(),
        max_epochs=3,
        accumulate_grad_batches=accumulate,
        log_every_n_steps=of_trainer,
    )
    assert [row["step"] for row in rows] == list(range(2, trainer.global_step, 3))
    assert trainer.global_step == 3 * math.ceil(NUM_BATCHES / accumulate)


class Missing(Plain):
    """Has no loss at some of its batches."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in (2, 5) else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_without_gradients_the_norm_is_zero(tmp_path: Path) -> None:
    _, rows = fit(tmp_path, GradientNormMonitor(), module=Missing(), max_epochs=1)
    missing = [row["step"] for row in rows if row["grad_norm"] == row["grad_norm/clipped"] == 0]
    assert missing == [2, 5]


class Failing(Callback):
    """Stops the run before its fourth step."""

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if trainer.global_step == 3:
            raise RuntimeError("Enough.")


def test_a_fit_after_one_that_failed_logs_its_own_rows(tmp_path: Path) -> None:
    monitor = GradientNormMonitor(by_module=1, update_ratio=True)
    with pytest.raises(RuntimeError, match="Enough"):
        fit(tmp_path / "failed", monitor, Failing(), module=Plain())
    _, rows = fit(tmp_path / "again", monitor, module=Plain())
    assert_rows(rows, rows_by_hand())


def test_the_step_that_ends_a_run_is_logged_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Enough"):
        fit(tmp_path, GradientNormMonitor(), Failing(), module=Plain())
    last, by_hand = read_rows(tmp_path)[-1], rows_by_hand()[3]
    assert last == pytest.approx({name: by_hand[name] for name in ("step", "grad_norm")}, rel=1e-4)


def test_never_if_the_trainer_never_logs(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, GradientNormMonitor(), log_every_n_steps=0)
    trainer.fit(Plain(), DataLoader(make_data(), batch_size=2))
    assert not trainer.callback_metrics
    assert not list(tmp_path.rglob("metrics.csv"))


def test_monitors_with_other_settings_do_not_collide(tmp_path: Path) -> None:
    monitors = [
        GradientNormMonitor(norm_type=order, by_module=1, update_ratio=True) for order in ORDERS
    ]
    trainer, rows = fit(tmp_path, *monitors, module=Plain())
    by_hand = [rows_by_hand(order=order) for order in ORDERS]
    # at every step each of the monitors adds a row
    assert_rows(rows, [row for of_step in zip(*by_hand, strict=True) for row in of_step])
    last = {key: value for of_order in by_hand for key, value in of_order[-1].items()}
    del last["step"]
    seen = {key: float(value) for key, value in trainer.callback_metrics.items()}
    assert seen == pytest.approx(last, rel=1e-4)


class Validated(Recipe):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val", 1.0)


@pytest.mark.parametrize("on_train_epoch_end", [True, False])
def test_early_stopping_sees_the_newest_norm(on_train_epoch_end: bool) -> None:
    stopping = EarlyStopping(
        "grad_norm",
        patience=100,
        divergence_threshold=0.0,  # any norm is above it
        check_on_train_epoch_end=on_train_epoch_end,
    )
    trainer = make_trainer(None, GradientNormMonitor(), stopping, limit_val_batches=1)
    loader = DataLoader(make_data(), batch_size=2)
    trainer.fit(Validated(), loader, loader)
    assert stopping.stopped_epoch == 0
    assert trainer.global_step == NUM_BATCHES
    expected = rows_by_hand(max_epochs=1)[-1]["grad_norm"]
    assert stopping.best_score.item() == math.inf
    assert trainer.callback_metrics["grad_norm"].item() == pytest.approx(expected, rel=1e-4)


def test_a_resumed_run_logs_the_same_rows(tmp_path: Path) -> None:
    def run(root: Path, ckpt_path: Path | None = None) -> list[dict[str, float]]:
        monitor = GradientNormMonitor(by_module=2, update_ratio=True, every_n_steps=2)
        trainer = project.make_trainer(root, monitor, gradient_clip_val=0.1)
        data = project.PointsDataModule(batch_size=4, seed=5)
        path = None if ckpt_path is None else str(ckpt_path)
        trainer.fit(project.make_module(), data, ckpt_path=path)
        return read_rows(root)

    whole = run(tmp_path / "whole")
    for step in (5, 12):
        saved = tmp_path / "whole" / "resume" / f"step={step:09d}.ckpt"
        resumed = run(tmp_path / str(step), saved)
        assert resumed == [row for row in whole if row["step"] >= step]


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm_type": 0}, "norm_type .* > 0 or inf, got 0"),
        ({"norm_type": math.nan}, "norm_type .* got nan"),
        ({"by_module": -1}, "by_module .* got -1"),
        ({"every_n_steps": 0}, "every_n_steps .* got 0"),
    ],
)
def test_bad_arguments_are_named_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradientNormMonitor(**options)
