import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

from lightning_recipes.__main__ import main
from lightning_recipes.cli import RecipesCLI
from tests.commands import run_command

DIGITS = "lightning-recipes fit --config configs/digits.yaml --trainer.accelerator cpu"
SHORT = "--trainer.max_epochs 1 --trainer.limit_train_batches 3 --trainer.limit_val_batches 2"


class Configurable(BoringModel):
    """A user's module that saves its hyper-parameters."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.rate = rate


class Data(BoringDataModule):
    """A user's data module."""


def fit(root: Path, *options: str) -> RecipesCLI:
    return RecipesCLI(
        [
            *(
                "fit",
                "--seed_everything",
                "1",
                "--model",
                f"{__name__}.Configurable",
                "--data",
                f"{__name__}.Data",
            ),
            *("--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(root)),
            *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2"),
            *("--trainer.callbacks", "ModelCheckpoint", "--trainer.limit_val_batches", "0"),
            *("--trainer.enable_progress_bar", "false"),
            *("--trainer.enable_model_summary", "false", *options),
        ]
    )


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["lightning-recipes"])


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A short run of configs/digits.yaml: its folder and what it printed."""
    cwd = tmp_path_factory.mktemp("digits")
    return cwd, run_command(f"{DIGITS} {SHORT}", cwd)


def test_everything_is_written_under_the_root(digits_run: tuple[Path, str]) -> None:
    cwd, _ = digits_run
    assert {path.name for path in cwd.iterdir()} == {"configs", "examples", "runs"}
    log_dir = cwd / "runs/digits/lightning_logs/version_0"
    names = {path.name.partition(".")[0] for path in log_dir.iterdir()}
    assert names >= {"metrics", "config", "events"}
    assert list((cwd / "runs/digits/checkpoints").iterdir())
    with (log_dir / "metrics.csv").open() as file:
        assert "val/accuracy" in next(csv.reader(file))
    assert list((cwd / "runs/digits/resume").iterdir())


def test_last_lines_say_best_model_and_how_to_go_on(digits_run: tuple[Path, str]) -> None:
    cwd, output = digits_run
    best, go_on = output.strip().splitlines()[-2:]
    assert (cwd / best.split(": ")[1].strip()).is_file()
    command = go_on.split(": ")[1].strip()
    # the command is right as it stands; training three epochs more shows that it goes on
    assert "Best model" in run_command(command, cwd)


def test_saved_config_reproduces_the_run(digits_run: tuple[Path, str]) -> None:
    cwd, _ = digits_run
    saved = "runs/digits/lightning_logs/version_0/config.yaml"
    run_command(f"lightning-recipes fit --config {saved} --trainer.default_root_dir again", cwd)
    again = cwd / "again/lightning_logs/version_0"

    def comparable(path: Path) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load(path.read_text())
        config["trainer"].pop("default_root_dir")
        config.pop("config", None)
        return config

    assert comparable(again / "config.yaml") == comparable(cwd / saved)
    name = "resume/step=000000003.ckpt"
    one, two = (
        torch.load(root / name, weights_only=True) for root in (cwd / "runs/digits", cwd / "again")
    )
    torch.testing.assert_close(one["state_dict"], two["state_dict"], rtol=0, atol=0)
    assert set(one["callbacks"]) == set(two["callbacks"])


def test_validate_test_and_predict_take_the_checkpoint(digits_run: tuple[Path, str]) -> None:
    cwd, _ = digits_run
    (best,) = (cwd / "runs/digits/checkpoints").glob("*.ckpt")
    options = f"--config configs/digits.yaml --trainer.accelerator cpu --ckpt_path '{best}'"
    assert "val/accuracy" in run_command(f"lightning-recipes validate {options}", cwd)
    assert "test/accuracy" in run_command(f"lightning-recipes test {options}", cwd)
    run_command(f"lightning-recipes predict {options}", cwd)
    predictions = torch.load(cwd / "runs/digits/predictions-rank0.pt", weights_only=True)
    # 15 % of 1,797 images, ten logits each
    assert torch.cat(predictions).shape == (270, 10)


def test_misspelt_key_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        fit(tmp_path, "--trainer.max_epoch", "1")
    assert "max_epoch" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fit(tmp_path, "--model.raet", "1")
    assert "raet" in capsys.readouterr().err


def test_command_line_wins_over_a_checkpoints_hyper_parameters(tmp_path: Path) -> None:
    first = fit(tmp_path, "--model.rate", "0.5")
    path = first.trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    assert torch.load(path, weights_only=True)["hyper_parameters"]["rate"] == 0.5
    options = ("--model.rate", "0.25", "--ckpt_path", path, "--trainer.max_epochs", "2")
    second = fit(tmp_path, *options)
    assert second.model.rate == 0.25


def test_users_modules_run_without_our_callbacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = fit(tmp_path)
    assert isinstance(cli.datamodule, LightningDataModule)
    assert "Best model" in capsys.readouterr().out


def test_progress_bar_waits_for_the_device_only_now_and_then(tmp_path: Path) -> None:
    cli = fit(tmp_path, "--trainer.enable_progress_bar", "true")
    assert cli.trainer.progress_bar_callback.refresh_rate > 1  # type: ignore[union-attr]


def test_loggers_can_be_turned_off(tmp_path: Path) -> None:
    assert fit(tmp_path, "--trainer.logger", "false").trainer.loggers == []


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "lightning-recipes fit --config configs/names.yaml" in shown
    assert '"certify" kills and resumes the training' in " ".join(shown.split())
