"""Fails with a readable message when Lightning moves what callbacks/loop_state.py touches."""

from pathlib import Path

import lightning
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy

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
    loop = trainer.fit_loop.epoch_loop
    assert "_restarting" in vars(loop), MOVED.format("epoch_loop._restarting")
    assert callable(loop._should_check_val_fx), MOVED.format("_should_check_val_fx")
    assert callable(loop._broadcast_sigterm_tensor), MOVED.format("_broadcast_sigterm_tensor")
    connector = trainer._signal_connector
    assert callable(connector.register_signal_handlers), MOVED.format("register_signal_handlers")
    environment = trainer._accelerator_connector.cluster_environment
    assert environment is not None, MOVED.format("cluster_environment")
    assert callable(loop._on_before_fetch), MOVED.format("epoch_loop._on_before_fetch")
    assert "_last_global_step_saved" in vars(ModelCheckpoint()), MOVED.format("ModelCheckpoint")


def test_strategies_say_whether_they_write_folders() -> None:
    name = "_save_distributed_checkpoint"
    assert vars(ModelParallelStrategy()).get(name) is True, MOVED.format(name)
    assert "_state_dict_type" in vars(FSDPStrategy()), MOVED.format("FSDPStrategy._state_dict_type")


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
    loop_state.finish_restart(trainer)
    assert not trainer.fit_loop.restarting
