from pathlib import Path

import pytest
import yaml

from tests.commands import ROOT, run_command

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SHORT = (
    "--trainer.max_epochs 1 --trainer.limit_train_batches 3 --trainer.limit_val_batches 2"
    " --trainer.default_root_dir here"
)
TWO_RANKS = "--trainer.accelerator cpu --trainer.devices 2"


def first_line(config: Path) -> str:
    return config.read_text().splitlines()[0].removeprefix("# ")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_first_line_runs_it(config: Path, tmp_path: Path) -> None:
    command = first_line(config)
    assert f"configs/{config.name}" in command
    extra = TWO_RANKS if config.stem == "ddp" else "--trainer.accelerator cpu"
    output = run_command(f"{command} {SHORT} {extra}", tmp_path)
    assert "here/resume/step=000000003.ckpt" in output
    written = {path.name for path in tmp_path.iterdir()} - {"configs", "examples"}
    assert written == {"here"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_overlays_drop_no_callbacks(config: Path, tmp_path: Path) -> None:
    output = run_command(f"{first_line(config)} --print_config", tmp_path)
    callbacks = yaml.safe_load(output)["trainer"]["callbacks"]
    names = {callback["class_path"].rpartition(".")[2] for callback in callbacks}
    assert names >= {"ResumeCheckpoint", "WarmupCosineLR", "ModelCheckpoint", "LearningRateMonitor"}


def test_debug_adds_a_callback(tmp_path: Path) -> None:
    output = run_command(f"{first_line(ROOT / 'configs/debug.yaml')} --print_config", tmp_path)
    callbacks = yaml.safe_load(output)["trainer"]["callbacks"]
    assert any(callback["class_path"].endswith("ModelSummary") for callback in callbacks)
