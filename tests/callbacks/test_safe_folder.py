import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lightning_recipes.callbacks.safe_folder import HiddenFolder, remove_folder
from tests.callbacks.test_safe_write import names


def save_two(part: Path) -> None:
    for name in ("shard", "meta.pt"):
        (part / name).write_text(name)


def fail_half_way(part: Path) -> None:
    (part / "shard").write_text("half")
    raise OSError("no space left")


def test_it_has_its_name_when_it_is_complete_and_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_replace(source: Any, target: Any) -> None:
        assert names(Path(source)) == ["meta.pt", "shard"]
        events.append("named")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    folder = HiddenFolder(rank=0)
    folder.write(tmp_path / "runs" / "one.ckpt", save_two)
    assert folder.error is None
    assert set(events[:2]) == {"shard", "meta.pt"}
    assert events[2:] == [".one.ckpt.part", "named", "runs"]
    assert names(tmp_path / "runs") == ["one.ckpt"]


def test_a_failure_costs_only_what_was_being_written(tmp_path: Path) -> None:
    folder = HiddenFolder(rank=0)
    folder.write(tmp_path / "one.ckpt", save_two)
    folder.write(tmp_path / "one.ckpt", fail_half_way)
    assert folder.error == "rank 0: OSError: no space left"
    assert names(tmp_path) == ["one.ckpt"]
    assert names(tmp_path / "one.ckpt") == ["meta.pt", "shard"]
    folder.write(tmp_path / "two.ckpt", save_two)
    assert folder.error is None


def test_the_same_step_once_more_and_what_a_kill_left_are_replaced(tmp_path: Path) -> None:
    for leftover in (".one.ckpt.part", "one.ckpt"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "stale").write_text("")
    folder = HiddenFolder(rank=0)
    folder.write(tmp_path / "one.ckpt", save_two)
    assert names(tmp_path) == ["one.ckpt"]
    assert names(tmp_path / "one.ckpt") == ["meta.pt", "shard"]


def test_what_is_half_removed_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.ckpt").mkdir()
    save_two(tmp_path / "one.ckpt")

    def killed(path: Path, **kwargs: Any) -> None:
        if not kwargs:
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_folder(tmp_path / "one.ckpt")
    assert names(tmp_path) == [".one.ckpt.old"]
