import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint

from lightning_recipes import ResumeCheckpoint, WarmupCosineLR
from tests.project import PointsDataModule, make_module, make_trainer
from tests.ranks import run_trainer_ranks

KEY = "lightning_recipes.ResumeCheckpoint"


def end_of_run(trainer: Trainer) -> dict[str, Any]:
    """Everything that must not depend on whether a run was stopped."""
    (optimizer,) = trainer.optimizers
    (schedule,) = trainer.lr_scheduler_configs
    return {
        "weights": trainer.lightning_module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.scheduler.state_dict(),
        "global_step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "callback_metrics": dict(trainer.callback_metrics),
    }


def rows_after(root: Path, step: int) -> list[dict[str, str]]:
    """The logged rows of optimizer steps after ``step``."""
    (path,) = root.glob("lightning_logs/version_0/metrics.csv")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) >= step]
    return [{k: v for k, v in row.items() if v} for row in rows]


def run(root: Path, *, ckpt_path: Path | None = None, **kwargs: Any) -> dict[str, Any]:
    num_workers = kwargs.pop("num_workers", 0)
    trainer = make_trainer(root, **kwargs)
    data = PointsDataModule(batch_size=4 // trainer.world_size, num_workers=num_workers, seed=5)
    trainer.fit(make_module(), data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return end_of_run(trainer)


def checkpoint(root: Path, step: int) -> Path:
    return root / "resume" / f"step={step:09d}.ckpt"


def assert_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0)


# Of 18 steps in three epochs: inside, before and after a validation, the last batch of an epoch and
# the first of the next.
MOMENTS = [1, 2, 3, 5, 6, 7, 12, 17]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"num_workers": 2}, id="workers"),
        pytest.param({"val_check_interval": 0.5}, id="validation inside the epoch"),
        pytest.param({"check_val_every_n_epoch": 2}, id="validation every other epoch"),
        pytest.param({"max_epochs": -1, "max_steps": 15}, id="max_steps"),
        pytest.param({"limit_train_batches": 5}, id="limited"),
    ],
)
def test_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = run(tmp_path / "whole", **options)
    moments = MOMENTS if options.get("num_workers", 0) == 0 else [2, 6]
    for step in (step for step in moments if step < whole["global_step"]):
        root = tmp_path / f"resumed-{step}"
        resumed = run(root, ckpt_path=checkpoint(tmp_path / "whole", step), **options)
        assert_same(whole, resumed)
        assert rows_after(root, step) == rows_after(tmp_path / "whole", step), step


def test_saving_does_not_change_the_run(tmp_path: Path) -> None:
    with_saving = run(tmp_path / "a")
    trainer = make_trainer(tmp_path / "b")
    trainer.callbacks[0] = ResumeCheckpoint(every_n_steps=1000)  # type: ignore[attr-defined]
    trainer.fit(make_module(), PointsDataModule(batch_size=4, seed=5))
    assert_same(with_saving, end_of_run(trainer))


def test_never_saves_inside_an_accumulation_window(tmp_path: Path) -> None:
    # six batches in windows of four and two are two steps an epoch
    whole = run(tmp_path / "whole", accumulate_grad_batches=4)
    for step in range(1, 6):
        state = torch.load(checkpoint(tmp_path / "whole", step), weights_only=True)
        (rank,) = state[KEY]["ranks"]
        (loader,) = rank["loaders"]["states"]
        assert loader["batch"] in ({1: {4}, 0: {0, 6}}[step % 2])
        resumed = run(
            tmp_path / f"resumed-{step}",
            ckpt_path=checkpoint(tmp_path / "whole", step),
            accumulate_grad_batches=4,
        )
        assert_same(whole, resumed)


def test_finished_run_can_be_trained_longer(tmp_path: Path) -> None:
    def run_with_horizon(root: Path, max_epochs: int, ckpt_path: Path | None) -> dict[str, Any]:
        trainer = make_trainer(root, max_epochs=max_epochs)
        trainer.callbacks[1] = WarmupCosineLR(warmup=4, total_steps=18)  # type: ignore[attr-defined]
        data = PointsDataModule(batch_size=4, seed=5)
        trainer.fit(make_module(), data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
        return end_of_run(trainer)

    whole = run_with_horizon(tmp_path / "whole", 3, None)
    run_with_horizon(tmp_path / "short", 1, None)
    longer = run_with_horizon(tmp_path / "longer", 3, checkpoint(tmp_path / "short", 6))
    assert_same(whole, longer)


def test_resuming_twice_is_exact(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    first = checkpoint(tmp_path / "whole", 4)
    run(tmp_path / "once", ckpt_path=first)
    resumed = run(tmp_path / "twice", ckpt_path=checkpoint(tmp_path / "once", 9))
    assert_same(whole, resumed)


class Stop(Callback):
    """Ends the training as a crash would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("crash")


def test_resume_from_a_model_checkpoint_restores_data_and_rng(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    keeper = partial(ModelCheckpoint, tmp_path / "kept", every_n_train_steps=4, save_top_k=-1)
    stopped = make_trainer(tmp_path / "stopped", Stop(9), keeper(), enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="crash"):
        stopped.fit(make_module(), PointsDataModule(batch_size=4, seed=5))
    (kept,) = (tmp_path / "kept").glob("*step=4.ckpt")
    resumed = make_trainer(tmp_path / "resumed", keeper(), enable_checkpointing=True)
    resumed.fit(make_module(), PointsDataModule(batch_size=4, seed=5), ckpt_path=str(kept))
    assert_same(whole, end_of_run(resumed))


def fit_on_a_rank(root: Path, ckpt_path: Path | None) -> tuple[dict[str, Any], list[float]]:
    draws: list[float] = []

    class Draws(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            draws.append(torch.rand(()).item())

    trainer = make_trainer(root, Draws(), devices=2, strategy="ddp")
    data = PointsDataModule(batch_size=2, num_workers=0, seed=5)
    trainer.fit(make_module(), data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return end_of_run(trainer), draws


def test_each_rank_has_its_own_stream_and_gets_it_back(tmp_path: Path) -> None:
    whole = run_trainer_ranks(fit_on_a_rank, tmp_path / "whole", None)
    (_, draws_0), (_, draws_1) = whole
    assert not set(draws_0) & set(draws_1)
    step = 8
    resumed = run_trainer_ranks(
        fit_on_a_rank, tmp_path / "resumed", checkpoint(tmp_path / "whole", step)
    )
    for (state, draws), (resumed_state, resumed_draws) in zip(whole, resumed, strict=True):
        assert_same(state, resumed_state)
        assert resumed_draws == draws[step:]


def test_file_is_plain_and_small(tmp_path: Path) -> None:
    run(tmp_path)
    path = checkpoint(tmp_path, 4)
    content = torch.load(path, weights_only=True)
    leaves = torch.utils._pytree.tree_leaves(content)
    size = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
    assert path.stat().st_size <= 1.2 * size + 64 * 1024


def test_keeps_the_last_of_its_own_files(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    callback = ResumeCheckpoint(every_n_steps=5, keep_last=2)
    trainer.callbacks[0] = callback  # type: ignore[attr-defined]
    foreign = checkpoint(tmp_path, 999)
    foreign.parent.mkdir()
    foreign.touch()
    trainer.fit(make_module(), PointsDataModule(batch_size=4))
    # 5, 10, 15 and the end at 18
    expected = [checkpoint(tmp_path, 15), checkpoint(tmp_path, 18), foreign]
    assert sorted(foreign.parent.iterdir()) == expected
    assert callback.last_path == str(checkpoint(tmp_path, 18))


def test_dirpath_can_be_chosen(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "root")
    trainer.callbacks[0] = ResumeCheckpoint(str(tmp_path / "here"))  # type: ignore[attr-defined]
    trainer.fit(make_module(), PointsDataModule(batch_size=4))
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["step=000000018.ckpt"]


def test_seed_selects_the_streams(tmp_path: Path) -> None:
    def weights(seed: int | None) -> Any:
        trainer = make_trainer(tmp_path / str(seed))
        trainer.callbacks[0] = ResumeCheckpoint(seed=seed)  # type: ignore[attr-defined]
        trainer.fit(make_module(), PointsDataModule(batch_size=4))
        return end_of_run(trainer)["weights"]["network.0.weight"]

    assert torch.equal(weights(3), weights(None))  # make_module() seeds with 3
    assert not torch.equal(weights(3), weights(4))


def test_checkpoint_without_this_state_goes_on_with_a_warning(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    del trainer.callbacks[0]  # type: ignore[attr-defined]
    trainer.fit(make_module(), PointsDataModule(batch_size=4))
    trainer.save_checkpoint(tmp_path / "stranger.ckpt")
    with pytest.warns(UserWarning, match="without ResumeCheckpoint"):
        run(tmp_path / "resumed", ckpt_path=tmp_path / "stranger.ckpt")


def test_unknown_version_and_other_data_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    content = torch.load(checkpoint(tmp_path / "whole", 4), weights_only=True)
    content[KEY]["version"] = 99
    torch.save(content, tmp_path / "future.ckpt")
    with pytest.raises(ValueError, match=r"version 99.* reads 1"):
        run(tmp_path / "a", ckpt_path=tmp_path / "future.ckpt")
    trainer = make_trainer(tmp_path / "b")
    with pytest.raises(ValueError, match=r"seed=5.* 6"):
        trainer.fit(
            make_module(),
            PointsDataModule(batch_size=4, seed=6),
            ckpt_path=str(checkpoint(tmp_path / "whole", 4)),
        )


def test_warns_when_it_is_not_the_first(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.callbacks.insert(0, LearningRateMonitor())  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="LearningRateMonitor stands before it"):
        trainer.fit(make_module(), PointsDataModule(batch_size=4))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps"),
        ({"keep_last": 0}, "keep_last"),
        ({"seed": -1}, "-1"),
    ],
)
def test_bad_arguments_are_named_at_construction(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResumeCheckpoint(**kwargs)


KILLED = """
import sys
from pathlib import Path
from tests.callbacks.test_resume_checkpoint import run
run(Path(sys.argv[1]), max_epochs=100_000)
"""


def test_sigkill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "killed")])
    newest: list[Path] = []
    deadline = time.monotonic() + 120
    while len(newest) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
        newest = sorted((tmp_path / "killed" / "resume").glob("*.ckpt"))
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # the very last one may be half written
    step = int(newest[-2].stem.removeprefix("step="))
    options = {"max_epochs": -1, "max_steps": step + 8}

    # the horizon of the killed run, so that the rates are the same
    def go(root: Path, ckpt_path: Path | None) -> dict[str, Any]:
        trainer = make_trainer(root, **options)
        trainer.callbacks[1] = WarmupCosineLR(warmup=4, total_steps=600_000)  # type: ignore[attr-defined]
        data = PointsDataModule(batch_size=4, num_workers=0, seed=5)
        trainer.fit(make_module(), data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
        return end_of_run(trainer)

    assert_same(go(tmp_path / "whole", None), go(tmp_path / "resumed", newest[-2]))


def test_state_is_small(tmp_path: Path) -> None:
    run(tmp_path)
    state = torch.load(checkpoint(tmp_path, 8), weights_only=True)[KEY]
    buffer = io.BytesIO()
    torch.save(state, buffer)
    assert buffer.tell() <= 20 * 1024


def test_run_goes_on_without_this_callback(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    trainer = make_trainer(tmp_path / "resumed")
    del trainer.callbacks[0]  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=r"add the following callbacks.*ResumeCheckpoint"):
        trainer.fit(
            make_module(),
            PointsDataModule(batch_size=4, seed=5),
            ckpt_path=str(checkpoint(tmp_path / "whole", 8)),
        )
    assert trainer.global_step == 18


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda rng: rng.update(torch=torch.zeros(3, dtype=torch.uint8)), id="size"),
        pytest.param(lambda rng: rng.update(torch=torch.zeros(5056)), id="dtype"),
        pytest.param(lambda rng: rng.pop("numpy"), id="part"),
    ],
)
def test_damaged_random_state_is_refused(damage: Callable[[Any], Any], tmp_path: Path) -> None:
    run(tmp_path / "whole")
    content = torch.load(checkpoint(tmp_path / "whole", 4), weights_only=True)
    damage(content[KEY]["ranks"][0]["rng"])
    torch.save(content, tmp_path / "damaged.ckpt")
    with pytest.raises(ValueError, match="part of the RNG state is missing or damaged"):
        run(tmp_path / "resumed", ckpt_path=tmp_path / "damaged.ckpt")


def test_keeps_house_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(tmp_path, max_epochs=1)
    callback = ResumeCheckpoint("here", every_n_steps=2, keep_last=1)
    trainer.callbacks[0] = callback  # type: ignore[attr-defined]
    trainer.fit(make_module(), PointsDataModule(batch_size=4, seed=5))
    assert callback.saved_paths == [str(tmp_path / "here" / "step=000000006.ckpt")]
