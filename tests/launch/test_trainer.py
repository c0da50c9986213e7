from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

import lightning_recipes
from lightning_recipes import ResumeCheckpoint
from lightning_recipes.cli import RecipesCLI
from tests.launch.job import Data, Module


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the first of two processes."""
    variables = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**variables, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


def test_alone_it_is_the_trainer() -> None:
    trainer = lightning_recipes.trainer(accelerator="cpu", max_steps=7, logger=False)
    assert type(trainer) is Trainer
    assert (trainer.world_size, trainer.max_steps, trainer.precision) == (1, 7, "32-true")


@pytest.mark.usefixtures("two")
def test_takes_the_processes_that_are_there() -> None:
    assert lightning_recipes.trainer(accelerator="cpu", logger=False).world_size == 2


@pytest.mark.usefixtures("two")
def test_refuses_to_train_beside_the_others(tmp_path: Path) -> None:
    options = {"accelerator": "cpu", "logger": False, "max_epochs": 1}
    options["default_root_dir"] = str(tmp_path)
    with pytest.raises(MisconfigurationException, match="started 2 processes"):
        lightning_recipes.trainer(**options, strategy="single_device")
    resume = Trainer(**options, callbacks=[ResumeCheckpoint()])  # type: ignore[arg-type]
    with pytest.raises(MisconfigurationException, match="2 models side by side"):
        resume.fit(BoringModel())
    options = {**options, "limit_val_batches": 0, "enable_checkpointing": False}
    with pytest.raises(MisconfigurationException, match="2 models side by side"):
        Trainer(**options).fit(Module(), Data())  # type: ignore[arg-type]


BORING = "lightning.pytorch.demos.boring_classes.Boring"
FIT = ["fit", "--seed_everything", "1", "--model", f"{BORING}Model", "--data"]
FIT += [f"{BORING}DataModule", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "1"]


class Built(RecipesCLI):
    """Goes no further than the trainer."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        raise RuntimeError(f"ranks: {trainer.world_size}, precision: {trainer.precision}")


@pytest.mark.usefixtures("two")
def test_a_configuration_takes_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["lightning-recipes"])
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setenv("LT_PRECISION", "bf16-mixed")
    root = ["--trainer.default_root_dir", str(tmp_path)]
    with pytest.raises(RuntimeError, match="ranks: 2, precision: bf16-mixed"):
        Built([*FIT, *root])
    with pytest.raises(MisconfigurationException, match="2 models side by side"):
        Built([*FIT, *root, "--trainer.strategy", "single_device"])


@pytest.mark.usefixtures("two")
def test_a_configuration_that_says_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["lightning-recipes"])
    expected = (
        "trainer.devices: 4 in the configuration under LOCAL_WORLD_SIZE=2: "
        "override it with --trainer.devices 2, or launch as it says."
    )
    with pytest.raises(MisconfigurationException) as caught:
        RecipesCLI([*FIT, "--trainer.devices", "4"])
    assert str(caught.value) == expected
