import json
from pathlib import Path
from typing import Any

import pytest

from lightning_recipes.__main__ import main
from lightning_recipes.certify import command
from lightning_recipes.certify.comparison import Difference
from tests.certify.test_run import PLAIN
from tests.commands import ROOT

DIGITS = [
    *("--config", str(ROOT / "configs/digits.yaml"), "--trainer.accelerator", "cpu"),
    *("--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "1"),
    *("--trainer.max_epochs", "2", "--trainer.log_every_n_steps", "1"),
    *("--model.init_args.network.init_args.width", "4"),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)


def certify(*arguments: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as end:
        main(["certify", *arguments, "--output", "made/here.json"])
    path = Path("made/here.json")
    content = json.loads(path.read_text()) if path.exists() else {}
    assert isinstance(end.value.code, int)
    return end.value.code, content


def test_a_run_that_saves_itself_is_identical(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, content = certify(*DIGITS, "--at", "4")
    assert content["first_difference"] is None
    assert (status, content["verdict"]) == (0, "identical")
    assert [point["killed_in_step"] for point in content["points"]] == [4]
    assert [point["resumed_after_step"] for point in content["points"]] == [3]
    assert [point["num_batches"] for point in content["points"]] == [3]
    assert set(content["points"][0]["differences"]) == set(Difference.QUANTITIES)
    assert set(content["versions"]) == {"python", "torch", "lightning", "lightning_recipes"}
    assert len(content["run"]["config_digest"]) == 16
    shown = capsys.readouterr().out
    assert "Identical" in shown
    assert "resumed after 4" in shown
    assert {path.name for path in tmp_path.iterdir()} == {"made"}


def test_two_ranks_with_workers_are_identical() -> None:
    status, content = certify(*DIGITS, "--at", "3", "--ranks", "2", "--workers", "2")
    assert content["first_difference"] is None
    assert status == 0
    assert content["run"]["world_size"] == content["run"]["workers"] == 2


def test_a_plain_project_learns_of_its_first_fault(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = ("--trainer.callbacks", "ModelCheckpoint")
    every = ("--trainer.callbacks.every_n_train_steps", "3")
    status, content = certify(*PLAIN, *checkpoint, *every, "--at", "5")
    assert (status, content["verdict"]) == (1, "different")
    (point,) = content["points"]
    assert point["resumed_after_step"] == 3
    assert point["before_kill"] is None
    difference = content["first_difference"]
    assert (difference["step"], difference["quantity"]) == (4, "batches")
    assert difference["expected"] != difference["found"]
    assert point["differences"]["rng"]["step"] == point["differences"]["weights"]["step"] == 4
    assert point["differences"]["end"] is None
    shown = " ".join(capsys.readouterr().out.split())
    assert "step 4 (epoch 0, rank 0): batches, digest of the batch" in shown
    assert "ResumeCheckpoint first" in shown


def test_without_a_certificate_the_output_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(*PLAIN, "--model.no_such_option", "1") == (2, {})
    shown = capsys.readouterr().out
    assert "no_such_option" in shown
    (folder,) = tmp_path.glob("certify-*")
    assert folder.name in shown.replace("\n", "")


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--at", "0"], ["--at", "x"], ["--ranks", "0"], ["--workers", "-1"]):
        with pytest.raises(SystemExit):
            command.main(wrong)
        assert wrong[0] in capsys.readouterr().err


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["certify", "--help"])
    assert "--trainer.max_steps" in capsys.readouterr().out
