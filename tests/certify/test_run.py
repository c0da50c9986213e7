import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lightning_recipes.certify.run import Run
from tests.commands import ROOT

PLAIN = [
    *("--model", "tests.certify.plain.Net", "--data", "tests.certify.plain.Data"),
    *("--seed_everything", "1", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "1"),
    *("--trainer.enable_progress_bar", "false", "--trainer.log_every_n_steps", "1"),
]


def make_run(folder: Path, *arguments: str, **kwargs: Any) -> Run:
    return Run([*PLAIN, *arguments], folder=folder / "records", root=folder / "root", **kwargs)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def test_is_killed_between_backward_and_update(tmp_path: Path) -> None:
    run = make_run(tmp_path, kill_in_step=3)
    assert run.execute(lambda step, total: None) == -9
    (records,) = run.records()
    assert [r["step"] for r in records if r["kind"] == "step"] == [1, 2]
    assert records[-1]["kind"] == "batch"
    assert records[-1]["step"] == 3


def test_records_everything_and_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    run = make_run(
        tmp_path,
        *("--trainer.callbacks", "ModelCheckpoint", "--trainer.callbacks.dirpath", "elsewhere"),
        *("--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "logs"),
    )
    assert run.execute(lambda step, total: calls.append((step, total))) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"records", "root"}
    (records,) = run.records()
    kinds = [r["kind"] for r in records]
    rows = [r for r in records if r["kind"] == "row"]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("batch") == kinds.count("step") == 6
    assert kinds.count("validation") == kinds.count("epoch_end") == 1
    assert [sorted(r["values"]) for r in rows] == [["epoch", "train_loss"]] * 6 + [
        ["epoch", "val_loss"]
    ]
    assert {r["step"] for r in run.records(ignore=["val_loss"])[0] if "val_loss" in str(r)} == set()
    assert set(records[-1]["weights"]) == {
        "net.0.weight",
        "net.0.bias",
        "net.3.weight",
        "net.3.bias",
    }
    assert "optimizer 0, net.0.weight, exp_avg" in records[-1]["optimizer"]
    assert calls[-1] == (6, 6)
    assert run.newest_checkpoint() is not None
    assert run.newest_checkpoint().is_relative_to(tmp_path / "root")  # type: ignore[union-attr]


def test_output_of_a_failed_run_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path, "--trainer.max_epoch", "2")
    assert run.execute(lambda step, total: None) != 0
    assert "max_epoch" in run.tail()
    assert run.records() == []


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.folder.mkdir()
    line = json.dumps({"kind": "begin"})
    (run.folder / "rank0.jsonl").write_text(f'{line}\n{{"kind": "ba')
    for rank in (10, 2):
        (run.folder / f"rank{rank}.jsonl").write_text(f"{line}\n" * rank)
    assert [len(records) for records in run.records()] == [1, 2, 10]


def test_newest_checkpoint_is_the_runs_own_before_any_other(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run.newest_checkpoint() is None
    now = time.time()
    for i, name in enumerate(["checkpoints/a.ckpt", "checkpoints/z.ckpt", "b.ckpt"]):
        path = run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (now + i, now + i))
    assert run.newest_checkpoint() == run.root / "b.ckpt"
    (run.root / "resume").mkdir()
    for step in (9, 10):
        (run.root / f"resume/step={step:09d}.ckpt").touch()
    assert run.newest_checkpoint() == run.root / "resume/step=000000010.ckpt"
