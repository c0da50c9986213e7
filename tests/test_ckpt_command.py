import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_recipes.__main__ import main
from tests.checkpoint_files import Payload, plant_in_metadata, save, save_shards, train


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(folder, num_steps=3)
    return folder


def ckpt(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """Return the exit status, and the text of each topic."""
    with pytest.raises(SystemExit) as caught:
        main(["ckpt", str(path)])
    assert isinstance(caught.value.code, int)
    lines = [line.partition("  ") for line in capsys.readouterr().out.splitlines()]
    return caught.value.code, {topic: text.strip() for topic, _, text in lines}


def test_it_tells_what_is_in_a_file(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = ckpt(run_folder / "step=000000002.ckpt", capsys)
    assert status == 0
    assert told["step"] == "2"
    assert told["epoch"] == "0"
    # Batches of one sample; the model is a linear layer from 32 to 2, with SGD and StepLR.
    assert (
        told["position"] == "2 batches of the epoch done; the train loader is at epoch 0, batch 2"
    )
    assert told["lightning"].startswith("2.6.")
    assert told["weights"] == "66 numbers in 2 tensors, 264 bytes"
    assert told["dtypes"] == "float32 (2)"
    assert told["optimizers"].startswith("1 group, lr 0.1")
    assert told["schedulers"] == "1"
    assert told["callbacks"] == "ResumeCheckpoint"
    assert told["hyper-parameters"] == "none"
    assert told["random state"].startswith("of 1 rank, ")
    assert told["resume state"] == "version 1, written between batches"
    assert [told[topic] for topic in ("finite", "intact", "resumable")] == ["yes"] * 3


def test_it_lists_a_folder(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "resume"
    shutil.copytree(run_folder, folder)
    newest = folder / "step=000000003.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    status, told = ckpt(folder, capsys)
    assert status == 0
    assert list(told) == [f"step=00000000{step}.ckpt" for step in (3, 2, 1)]
    assert "truncated" in told["step=000000003.ckpt"]
    assert [told[f"step=00000000{step}.ckpt"] for step in (2, 1)] == ["intact"] * 2
    for path in folder.iterdir():
        path.write_bytes(b"")
    status, told = ckpt(folder, capsys)
    assert status == 1
    assert set(told.values()) == {"the file is empty"}


def test_a_file_of_weights_only_is_intact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "x.ckpt", optimizer_states=None, lr_schedulers=None)
    status, told = ckpt(path, capsys)
    assert status == 0
    assert told["intact"] == "yes"
    assert told["resumable"].startswith("NO: weights only")
    assert told["optimizers"] == told["random state"] == told["callbacks"] == "none"
    assert told["resume state"].startswith("none")
    assert ckpt(tmp_path, capsys) == (0, {"x.ckpt": "intact"})


def test_a_broken_file_and_one_that_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(b"")
    status, told = ckpt(path, capsys)
    assert (status, told["intact"]) == (1, "NO: the file is empty")
    save(path, state_dict={"w": torch.tensor([float("nan")])})
    status, told = ckpt(path, capsys)
    assert (status, told["intact"], told["finite"]) == (1, "yes", "NO: NaN in w")
    assert ckpt(tmp_path, capsys) == (1, {"x.ckpt": "NaN in w"})


def test_shards_are_one_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_shards(tmp_path / "shards", step=7)
    status, told = ckpt(path, capsys)
    assert status == 0
    assert told["step"] == "7"
    assert told["weights"] == "16 numbers in 2 tensors, 64 bytes"  # of a linear layer, 3 to 4
    assert told["optimizers"] == "one, in the shards"
    assert told["intact"] == told["resumable"] == told["finite"] == "yes"
    (path / ".metadata").unlink()
    status, told = ckpt(path, capsys)
    assert (status, told["intact"][:25]) == (1, "NO: a folder without .met")


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.ckpt", tmp_path):
        with pytest.raises(SystemExit) as caught:
            main(["ckpt", str(path)])
        assert caught.value.code == 2
        assert str(path) in capsys.readouterr().err


def test_what_a_file_says_is_neither_run_nor_obeyed_by_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "made"
    save(tmp_path / "x.ckpt", hyper_parameters={"net": Payload(target)})
    plant_in_metadata(save_shards(tmp_path / "y.ckpt"), target)
    for name in ("x.ckpt", "y.ckpt"):
        status, told = ckpt(tmp_path / name, capsys)
        assert status == 1
        assert "mkdir" in told["intact"]
    status, told = ckpt(tmp_path, capsys)
    assert status == 1
    assert not target.exists()
    save(tmp_path / "z.ckpt", callbacks={"\x1b[2Jgone\nintact  no": {}})
    status, told = ckpt(tmp_path / "z.ckpt", capsys)
    assert told["callbacks"] == r"\x1b[2Jgone\nintact  no"
    assert told["intact"] == "yes"


def test_entries_of_other_versions_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [None, 1, "x", [], [1], {}, {"ranks": 1}, {"ranks": [1, {"loaders": {"states": [2]}}]}]
    for other in others:
        changes: dict[str, Any] = {"lightning_recipes.ResumeCheckpoint": other}
        path = save(
            tmp_path / "x.ckpt",
            1,
            loops={"fit_loop": other},
            callbacks=other,
            hyper_parameters=other,
            optimizer_states=[other, {"param_groups": [other], "state": other}],
            **changes,
        )
        status, told = ckpt(path, capsys)
        assert status == 0, told


def test_help_says_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["ckpt", "--help"])
    assert caught.value.code == 0
    assert "Exit status: 0 intact" in capsys.readouterr().out
