"""The same command again: it finds the newest intact checkpoint, and its logs go on."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_recipes import Classifier, ResumeCheckpoint
from lightning_recipes.checkpoints import BrokenCheckpoint
from lightning_recipes.cli import RecipesCLI
from lightning_recipes.loggers import run_loggers
from lightning_recipes.resume import resume_path
from tests.commands import ROOT
from tests.project import PointsDataModule, make_module
from tests.ranks import run_trainer_ranks

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args parameter is intended")

SHORT = [
    *("fit", "--config", str(ROOT / "configs" / "digits.yaml")),
    *("--trainer.accelerator", "cpu", "--trainer.max_epochs", "2"),
    *("--trainer.limit_train_batches", "6", "--trainer.limit_val_batches", "1"),
    *("--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar", "false"),
    *("--trainer.enable_model_summary", "false"),
]


def make_trainer(root: Path, **options: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    keeper = ResumeCheckpoint(every_n_steps=1, keep_last=None)
    return Trainer(default_root_dir=str(root), callbacks=[keeper], **{**defaults, **options})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of steps 1 to 6."""
    root = tmp_path_factory.mktemp("finished")
    make_trainer(root).fit(make_module(), datamodule=PointsDataModule(batch_size=4))
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def file(run: Path, step: int) -> Path:
    return run / "resume" / f"step={step:09d}.ckpt"


def test_the_newest_intact_one_is_chosen_and_said_why(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file(run, 6).write_bytes(file(run, 6).read_bytes()[:1000])
    file(run, 5).write_bytes(b"")
    with caplog.at_level("INFO"):
        chosen = resume_path(make_trainer(run), module=make_module())
    assert chosen == str(file(run, 4))
    (line,) = [record.message for record in caplog.records if "Resuming" in record.message]
    for name in (file(run, 4).name, f"{file(run, 5).name}: ", f"{file(run, 6).name}: "):
        assert name in line


def test_without_any_it_is_a_fresh_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert resume_path(make_trainer(tmp_path)) is None
    assert "A fresh start: there is no checkpoint in" in caplog.text


def test_a_fresh_start_beside_broken_ones_is_a_warning(run: Path) -> None:
    for step in range(1, 7):
        file(run, step).write_bytes(b"no checkpoint")
    with pytest.warns(UserWarning, match="A fresh start: none of the checkpoints"):
        assert resume_path(make_trainer(run)) is None


def test_a_checkpoint_of_another_model_is_refused_by_name(run: Path) -> None:
    other = Classifier(torch.nn.Linear(3, 2), num_classes=2)
    with pytest.warns(UserWarning, match=r"of another model: 'network.*' has shape"):
        assert resume_path(make_trainer(run), module=other) is None
    with pytest.raises(BrokenCheckpoint, match="of another model"):
        resume_path(make_trainer(run), str(file(run, 6)), module=other)


def test_a_path_has_to_be_intact(run: Path) -> None:
    assert resume_path(make_trainer(run), str(file(run, 3))) == str(file(run, 3))
    file(run, 3).write_bytes(file(run, 3).read_bytes()[:-100])
    with pytest.raises(BrokenCheckpoint):
        resume_path(make_trainer(run), str(file(run, 3)))
    with pytest.raises(FileNotFoundError):
        resume_path(make_trainer(run), str(run / "nothing.ckpt"))


def test_needs_a_resume_checkpoint() -> None:
    with pytest.raises(MisconfigurationException, match="none is among the callbacks"):
        resume_path(Trainer(accelerator="cpu", logger=False, enable_checkpointing=False))


def _fit_on_rank(root: str) -> str:
    trainer = make_trainer(Path(root), devices=2, strategy="ddp")
    path = None if trainer.global_rank else str(file(Path(root), 3))
    with pytest.raises(ValueError, match="different checkpoints") as error:
        trainer.fit(make_module(), datamodule=PointsDataModule(batch_size=2), ckpt_path=path)
    return str(error.value)


def test_ranks_that_found_different_ones_all_refuse(run: Path) -> None:
    one, two = run_trainer_ranks(_fit_on_rank, str(run))
    assert one == two
    assert f"{{0: '{file(run, 3)}', 1: None}}" in one


# --- the command line, and logs -------------------------------------------------------------------


def rows(root: Path) -> list[dict[str, str]]:
    (path,) = root.glob("lightning_logs/version_*/metrics.csv")
    with path.open(newline="") as table:
        read = [{k: v for k, v in row.items() if v} for row in csv.DictReader(table)]
    return sorted(read, key=lambda row: (int(row["step"]), sorted(row)))


class StopAt(Callback):
    """Ends the run with an error before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("The machine is gone.")


CALLBACKS = """
trainer:
  callbacks:
    - class_path: lightning_recipes.ResumeCheckpoint
      init_args: {every_n_steps: 5}
    - lightning_recipes.GradientNormMonitor
    - lightning_recipes.WarmupCosineLR
    - lightning.pytorch.callbacks.LearningRateMonitor
"""
STOP = """
    - class_path: tests.test_resume.StopAt
      init_args: {step: 8}
"""


def test_the_same_command_again_gives_one_run_and_one_curve(tmp_path: Path) -> None:
    def command(root: str, callbacks: str) -> RecipesCLI:
        config = tmp_path / "callbacks.yaml"
        config.write_text(callbacks)
        options = ["--trainer.default_root_dir", str(tmp_path / root), "--resume", "auto"]
        return RecipesCLI([*SHORT, "--config", str(config), *options])

    whole = command("whole", CALLBACKS)
    with pytest.raises(RuntimeError, match="The machine is gone"):
        command("killed", CALLBACKS + STOP)
    assert int(rows(tmp_path / "killed")[-1]["step"]) > 5
    again = command("killed", CALLBACKS)
    assert again.config_init["fit"]["ckpt_path"].endswith("step=000000005.ckpt")
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_rows_survive_a_start_that_is_killed_half_way(finished: Path, tmp_path: Path) -> None:
    (logger, *_) = run_loggers(str(tmp_path))
    for step in range(8):
        logger.log_metrics({"loss": 0.1 * step, "epoch": step // 4}, step)
    logger.save()
    folder = tmp_path / "lightning_logs" / "version_0"
    (folder / "metrics.csv").rename(folder / ".metrics.csv")  # as such a start leaves it
    checkpoint = torch.load(file(finished, 4), weights_only=True)
    checkpoint["lightning_recipes.ResumeCheckpoint"]["loggers"] = {"CSVLogger": 0}
    torch.save(checkpoint, tmp_path / "four.ckpt")
    (logger, *_) = run_loggers(str(tmp_path), resumed_from=str(tmp_path / "four.ckpt"))
    assert [row["step"] for row in rows(tmp_path)] == ["0", "1", "2", "3"]
    assert rows(tmp_path)[3]["loss"] == str(0.1 * 3)
    assert logger.version == 0
    assert [path.name for path in folder.iterdir()] == ["metrics.csv"]


def test_one_way_to_resume_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="one of --resume and --ckpt_path"):
        RecipesCLI([*SHORT, "--resume", "auto", "--ckpt_path", "x.ckpt"])
