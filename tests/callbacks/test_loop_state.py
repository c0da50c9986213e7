"""Fails with a readable message when Lightning moves what callbacks/loop_state.py touches."""

from pathlib import Path

import lightning
import pytest
from lightning.pytorch import Trainer

from lightning_recipes.callbacks import loop_state
from tests.project import PointsDataModule, make_module, make_trainer

MOVED = (
    f"Lightning {lightning.__version__} moved {{}}, on which exact resume rests: "
    "put callbacks/loop_state.py right."
)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    trainer = make_trainer(tmp_path)
    trainer.fit(make_module(), PointsDataModule(batch_size=4))
    return trainer


def test_loops_have_the_private_attributes(trainer: Trainer) -> None:
    assert "_restarting" in vars(trainer.fit_loop), MOVED.format("fit_loop._restarting")
    epoch_loop = vars(trainer.fit_loop.epoch_loop)
    assert epoch_loop["_batches_that_stepped"] == 18, MOVED.format("_batches_that_stepped")


def test_checkpoint_has_the_counters(trainer: Trainer, tmp_path: Path) -> None:
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    checkpoint = trainer.strategy.load_checkpoint(tmp_path / "run.ckpt")
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counters in (progress["total"], progress["current"]):
        expected = {"ready", "started", "processed", "completed"}
        assert set(counters) == expected, MOVED.format("the counters of batch_progress")
    assert "is_last_batch" in progress, MOVED.format("batch_progress.is_last_batch")


def test_counters_are_moved_between_batches() -> None:
    in_hand = {"ready": 4, "started": 3, "processed": 3, "completed": 3}
    progress = {"total": dict(in_hand), "current": dict(in_hand), "is_last_batch": True}
    checkpoint = {"loops": {"fit_loop": {"epoch_loop.batch_progress": progress}}}
    loop_state.move_counters_between_batches(checkpoint)
    rest = dict.fromkeys(in_hand, 3)
    assert progress == {"total": rest, "current": rest, "is_last_batch": False}


def test_restart_is_finished_with_max_steps_too(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_epochs=-1, max_steps=5)
    trainer.fit(make_module(), PointsDataModule(batch_size=4))
    trainer.fit_loop.restarting = True
    loop_state.finish_restart(trainer, batches_that_stepped=7)
    assert not trainer.fit_loop.restarting
    assert loop_state.get_batches_that_stepped(trainer) == 7
