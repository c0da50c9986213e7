"""A failed write is told, costs no older file, and is tried again."""

import errno
import os
import resource
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO

from lightning_recipes import NonFiniteError, ResumeCheckpoint
from lightning_recipes.callbacks.safe_write import SafeCheckpointIO
from tests.project import PointsDataModule, make_module
from tests.ranks import run_trainer_ranks


@contextmanager
def quota(num_bytes: int) -> Iterator[None]:
    """Let no file grow larger, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


class FullDisk(Callback):
    """Lets no checkpoint be written after the steps given."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.quota: Any = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.end()
        if trainer.global_step + 1 in self.steps:  # the next batch begins with a save
            self.quota = quota(4096)
            self.quota.__enter__()

    def end(self) -> None:
        if self.quota is not None:
            self.quota.__exit__(None, None, None)
            self.quota = None


def fit(root: Path, full: FullDisk, **options: Any) -> ResumeCheckpoint:
    keeper = ResumeCheckpoint(every_n_steps=1, **options.pop("keeper", {}))
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(root),
        callbacks=[keeper, full],
        **options,
    )
    try:
        trainer.fit(make_module(), datamodule=PointsDataModule(batch_size=4))
    finally:
        full.end()
    return keeper


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def step(number: int) -> str:
    return f"step={number:09d}.ckpt"


def test_the_run_goes_on_over_a_full_disk_and_says_so_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not be written") as caught:
        keeper = fit(tmp_path, FullDisk(3, 4))
    told = [str(warning.message) for warning in caught if "written" in str(warning.message)]
    assert len(told) == 1
    assert step(3) in told[0]
    assert f"Newest checkpoint: {tmp_path / 'resume' / step(2)}" in told[0]
    assert names(tmp_path / "resume") == [step(5), step(6)]
    assert keeper.saved_paths == [str(tmp_path / "resume" / step(n)) for n in (5, 6)]


def test_older_files_stay_until_a_newer_one_is_there(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not be"), pytest.raises(OSError, match="has ended"):
        fit(tmp_path, FullDisk(5, 6, 7), keeper={"keep_last": 1, "max_failed_writes": 9})
    assert names(tmp_path / "resume") == [step(4)]
    assert torch.load(tmp_path / "resume" / step(4), weights_only=True)["global_step"] == 4


def test_too_many_failures_in_a_row_are_an_error(tmp_path: Path) -> None:
    message = "Failed writes in a row: 2, max_failed_writes: 2"
    with pytest.warns(UserWarning, match="could not be"), pytest.raises(OSError, match=message):
        fit(tmp_path, FullDisk(2, 4, 5), keeper={"max_failed_writes": 2})
    assert names(tmp_path / "resume") == [step(1), step(3)]


def _fit_on_rank(root: str) -> list[str]:
    ddp: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        message = "Failed writes in a row: 1"
        with pytest.raises(OSError, match=message):
            fit(Path(root), FullDisk(3), keeper={"max_failed_writes": 1}, **ddp)
        torch.distributed.barrier()
    return names(Path(root, "resume"))


def test_all_ranks_learn_what_went_wrong_on_the_one_that_writes(tmp_path: Path) -> None:
    assert run_trainer_ranks(_fit_on_rank, str(tmp_path)) == [[step(1), step(2)]] * 2


def test_a_file_has_its_name_only_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], int]] = []
    replace = os.replace

    def watch(source: Any, target: Any) -> None:
        assert torch.load(source, weights_only=True) == {"x": 1}
        seen.append((names(tmp_path), os.stat(source).st_size))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    io = SafeCheckpointIO(TorchCheckpointIO())
    io.save_checkpoint({"x": 1}, tmp_path / "one.ckpt")
    assert io.error is None
    assert seen[0][0] == [".one.ckpt.part"]
    assert names(tmp_path) == ["one.ckpt"]


def test_the_file_and_its_name_are_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_replace(*paths: Any) -> None:
        events.append("named")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    SafeCheckpointIO(TorchCheckpointIO()).save_checkpoint({"x": 1}, tmp_path / "one.ckpt")
    assert events == [str(tmp_path / ".one.ckpt.part"), "named", str(tmp_path)]


class Remote(TorchCheckpointIO):
    """Writes something of its own."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        Path(path).write_text(f"{checkpoint} {storage_options}")


@pytest.mark.parametrize("plugin", [Remote(), AsyncCheckpointIO(Remote())])
def test_another_plugin_writes_in_its_own_way(plugin: Any, tmp_path: Path) -> None:
    io = SafeCheckpointIO(plugin)
    io.save_checkpoint({"x": 1}, tmp_path / "one.ckpt", "fast")
    assert (tmp_path / "one.ckpt").read_text() == "{'x': 1} fast"


def test_an_unwritable_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    io = SafeCheckpointIO(TorchCheckpointIO())
    io.save_checkpoint({"x": 1}, tmp_path / "in the way" / "one.ckpt")
    assert io.error is not None
    assert os.strerror(errno.ENOTDIR) in io.error or os.strerror(errno.EEXIST) in io.error


class Spoil(FullDisk):
    """Makes a weight NaN after a step."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == 3:
            next(pl_module.parameters()).data.view(-1)[0] = float("nan")


def test_weights_that_are_not_finite_replace_no_good_ones(tmp_path: Path) -> None:
    spoil = Spoil()
    with pytest.raises(NonFiniteError, match="not finite"):
        fit(tmp_path, spoil)
    assert names(tmp_path / "resume") == [step(1), step(2)]
