import shlex
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_recipes.__main__ import main
from tests.commands import ROOT, run_command

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SHORT = (
    "--trainer.max_epochs 1 --trainer.limit_train_batches 3 --trainer.limit_val_batches 2"
    " --trainer.default_root_dir here"
)
TWO_RANKS = "--trainer.accelerator cpu --trainer.devices 2"
ON_A_CPU = {"ddp": TWO_RANKS, "multi_node": f"{TWO_RANKS} --trainer.num_nodes 1"}
ON_GPUS = ("ddp_sync_bn", "fsdp")


def first_line(config: Path) -> str:
    return config.read_text().splitlines()[0].removeprefix("# ")


def test_every_config_says_when_to_use_it() -> None:
    for config in CONFIGS:
        told = list(takewhile(lambda line: line.startswith("#"), config.read_text().splitlines()))
        assert f"configs/{config.name}" in told[0]
        assert told[1] == "#"
        assert len(told) > 2
        assert max(map(len, told)) <= 110


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=[pytest.mark.gpu] if config.stem in ON_GPUS else [])
        for config in CONFIGS
    ],
    ids=lambda path: path.stem,
)
def test_first_line_runs_it(config: Path, tmp_path: Path) -> None:
    command = first_line(config)
    on_a_cpu = ON_A_CPU.get(config.stem, "--trainer.accelerator cpu")
    extra = "" if config.stem in ON_GPUS else on_a_cpu
    output = run_command(f"{command} {SHORT} {extra}", tmp_path)
    assert "here/resume/step=000000003.ckpt" in output
    written = {path.name for path in tmp_path.iterdir()} - {"configs", "examples"}
    assert written == {"here"}


@pytest.fixture
def print_config(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], dict[str, Any]]:
    """Parses the first line in this process: one of its own would take six seconds to start."""

    def parsed(config: Path) -> dict[str, Any]:
        program, *arguments = shlex.split(first_line(config))
        assert program == "lightning-recipes"
        monkeypatch.setattr("sys.argv", [program, *arguments, "--print_config"])
        monkeypatch.chdir(ROOT)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
        return found

    return parsed


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_overlays_drop_no_callbacks(
    config: Path, print_config: Callable[[Path], dict[str, Any]]
) -> None:
    callbacks = print_config(config)["trainer"]["callbacks"]
    names = {callback["class_path"].rpartition(".")[2] for callback in callbacks}
    assert names >= {"ResumeCheckpoint", "WarmupCosineLR", "ModelCheckpoint", "LearningRateMonitor"}
    assert ("RankCheck" in names) == (config.stem in {*ON_A_CPU, *ON_GPUS})
    # which refuse it
    assert ({"NaNDetector", "GradientNormMonitor"} <= names) == (config.stem != "fsdp")


def test_debug_adds_a_callback(print_config: Callable[[Path], dict[str, Any]]) -> None:
    callbacks = print_config(ROOT / "configs/debug.yaml")["trainer"]["callbacks"]
    assert any(callback["class_path"].endswith("ModelSummary") for callback in callbacks)
