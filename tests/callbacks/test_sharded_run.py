"""A model in shards: saved, resumed and watched like a whole one."""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from lightning_recipes import (
    BrokenCheckpoint,
    GradientNormMonitor,
    NaNDetector,
    NonFiniteError,
    RecipeModule,
    ResumeCheckpoint,
    Step,
    WarmupCosineLR,
    cross_entropy_step,
    intact_checkpoints,
    newest_intact,
    verify,
)
from lightning_recipes.loggers import run_loggers
from lightning_recipes.resume import resume_path
from tests.callbacks.test_safe_write import FullDisk, names, step
from tests.project import PointsDataModule
from tests.ranks import run_trainer_ranks

POLICIES: tuple[Literal["raise", "skip", "warn"], ...] = ("raise", "skip", "warn")
BAD = 2  # a batch of rank 1


class Whole(RecipeModule):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        seed_everything(3, verbose=False)
        drop = nn.Dropout(dropout)
        self.network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), drop, nn.Linear(16, 2))

    def step(self, batch: Any) -> Step:
        points, target = batch
        return cross_entropy_step(self.network(points), target)


class Sharded(Whole):
    def configure_model(self) -> None:
        assert self.device_mesh is not None
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])


class Reshaped(Sharded):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(2, 2)


def make_trainer(root: Path, *callbacks: Callback, folders: bool | None, **kwargs: Any) -> Trainer:
    """Return one of DDP for None, of folders of shards, or of shards gathered in a file."""
    strategy: Any = "ddp"
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if folders is not None:
        strategy = ModelParallelStrategy(world_size, 1, save_distributed_checkpoint=folders)
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 2,
    }
    return Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=strategy,
        default_root_dir=str(root),
        callbacks=list(callbacks),
        **{**quiet, **kwargs},
    )


def weights(module: LightningModule) -> dict[str, Tensor]:
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in module.named_parameters()
    }


def fit(
    root: Path,
    *callbacks: Callback,
    folders: bool | None,
    keep_last: int | None = None,
    ckpt_path: str | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train with everything that is ever clipped, logged, saved; return weights and metrics."""
    module = Whole() if folders is None else Sharded()
    keeper = ResumeCheckpoint(every_n_steps=1, keep_last=keep_last, max_failed_writes=2)
    watch = (NaNDetector(), GradientNormMonitor(), WarmupCosineLR(warmup=4))
    trainer = make_trainer(
        root,
        keeper,
        *watch,
        *callbacks,
        folders=folders,
        gradient_clip_val=0.3,
        log_every_n_steps=1,
    )
    trainer.fit(module, PointsDataModule(batch_size=2, seed=5), ckpt_path=ckpt_path)
    return weights(module), {k: v.item() for k, v in trainer.callback_metrics.items()}


class FullDiskOfRank1(FullDisk):
    def on_train_batch_start(self, *args: Any) -> None:
        if os.environ["RANK"] == "1":
            super().on_train_batch_start(*args)


def runs_of_a_rank(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"ddp": fit(root / "ddp", folders=None)}
    for folders in (True, False):
        place = root / str(folders)
        found[f"{folders} whole"] = fit(place, folders=folders)
        for number in (3, 8):
            path = str(place / "resume" / step(number))
            found[f"{folders} {number}"] = fit(place / "resumed", folders=folders, ckpt_path=path)
    if os.environ["RANK"] == "0":
        shutil.copytree(root / "True" / "resume", root / "kept")
    torch.distributed.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        last = str(root / "True" / "resume" / step(8))
        disk = FullDiskOfRank1(10)
        try:
            fit(root / "full", disk, folders=True, keep_last=2, ckpt_path=last)
        finally:
            disk.end()
    found["told"] = [str(w.message) for w in caught if "could not be written" in str(w.message)]
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("sharded")
    return root, run_trainer_ranks(runs_of_a_rank, root)


def test_shards_train_like_the_whole(saved: Any) -> None:
    _, ranks = saved
    for found in ranks:
        for kind in ("True", "False"):
            torch.testing.assert_close(found[f"{kind} whole"], found["ddp"], rtol=1e-5, atol=1e-6)
    norms = ranks[0]["ddp"][1]
    assert norms["grad_norm/clipped"] < 0.9 * norms["grad_norm"]


def test_shards_resume_exactly(saved: Any) -> None:
    _, ranks = saved
    for found in ranks:
        for kind in ("True", "False"):
            for number in (3, 8):
                resumed, whole = found[f"{kind} {number}"], found[f"{kind} whole"]
                assert resumed[1] == whole[1]
                assert all(torch.equal(resumed[0][name], whole[0][name]) for name in whole[0])


def test_a_folder_has_its_name_when_all_ranks_have_written(saved: Any) -> None:
    root, ranks = saved
    assert names(root / "kept") == [step(n) for n in range(1, 13)]
    for n in range(1, 13):
        path = root / "kept" / step(n)
        assert names(path) == [".metadata", "__0_0.distcp", "__1_0.distcp", "meta.pt"]
        verify(path, finite=True)
        assert (root / "False" / "resume" / step(n)).is_file()
    # Step 10 could not be written on rank 1. keep_last=2 removed the rest, of the run before, too.
    assert names(root / "full" / "resume") == [step(11), step(12)]
    assert names(root / "True" / "resume") == [step(n) for n in range(9, 13)]
    assert [len(found["told"]) for found in ranks] == [1, 0]
    assert step(10) in ranks[0]["told"][0]
    assert "rank 1: " in ranks[0]["told"][0]


def test_an_incomplete_folder_is_refused(saved: Any, tmp_path: Path) -> None:
    root, _ = saved
    folder = tmp_path / "resume"
    for n in (4, 5, 6, 7):
        shutil.copytree(root / "kept" / step(n), folder / step(n))
    (folder / step(7) / "__1_0.distcp").unlink()
    (folder / step(6) / ".metadata").unlink()
    (folder / step(5) / "meta.pt").unlink()
    shutil.copytree(folder / step(4), folder / f".{step(8)}.part")
    assert newest_intact(folder) == folder / step(4)
    reasons = [reason or "" for reason in intact_checkpoints(folder).values()]
    for reason, told in zip(
        reasons, ("__1_0.distcp is missing", ".metadata", "meta.pt", ""), strict=True
    ):
        assert told in reason
    trainer = Trainer(
        default_root_dir=str(tmp_path),
        callbacks=[ResumeCheckpoint()],
        logger=False,
        accelerator="cpu",
        enable_checkpointing=False,
    )
    assert resume_path(trainer, module=Sharded()) == str(folder / step(4))
    with pytest.raises(BrokenCheckpoint, match=r"another model: 'extra"):
        resume_path(trainer, str(folder / step(4)), module=Reshaped())
    # what --resume auto asks of the checkpoint before there is a trainer
    run_loggers(str(tmp_path), resumed_from=str(folder / step(4)))


@pytest.mark.slow
def test_shards_go_on_in_a_smaller_world(saved: Any, tmp_path: Path) -> None:
    root, ranks = saved
    path = str(root / "kept" / step(8))
    (resumed,) = run_trainer_ranks(_alone, tmp_path, path, world_size=1)
    names_ = set(ranks[0]["ddp"][0])
    assert set(resumed) == names_
    assert all(value.isfinite().all() for value in resumed.values())


def _alone(root: Path, path: str) -> dict[str, Tensor]:
    module = Sharded()
    trainer = make_trainer(root, ResumeCheckpoint(), folders=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The run was saved with 2 ranks")
        trainer.fit(module, PointsDataModule(batch_size=4, seed=5), ckpt_path=path)
    assert trainer.global_step == 12
    return weights(module)


def batches_of(rank: int) -> list[Any]:
    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(4, 8, generator=generator), torch.arange(4) % 2) for _ in range(6)]
    if rank == 1:
        batches[BAD][0][1, 3] = torch.nan
    return batches


def policies_of_a_rank(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rank = int(os.environ["RANK"])
    for folders in (None, True):
        for policy in POLICIES:
            module = Whole(0.0) if folders is None else Sharded(0.0)
            detector = NaNDetector(policy=policy)
            trainer = make_trainer(
                root,
                detector,
                folders=folders,
                max_epochs=1,
                use_distributed_sampler=False,
                gradient_clip_val=0.3,
                limit_val_batches=0,
            )
            made: Any = batches_of(rank)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    trainer.fit(module, DataLoader(made, batch_size=None))
                except NonFiniteError as error:
                    found[f"{folders} error"] = error
            told = [str(w.message) for w in caught if "not finite" in str(w.message)]
            found[f"{folders} {policy}"] = (weights(module), trainer.global_step, told)
            found[f"{folders} skipped"] = detector.skipped_steps or found.get(f"{folders} skipped")
    return found


def test_nan_detector_on_shards_does_as_on_the_whole(tmp_path: Path) -> None:
    ranks = run_trainer_ranks(policies_of_a_rank, tmp_path)
    for found in ranks:
        for policy in POLICIES:
            shards, whole = found[f"True {policy}"], found[f"None {policy}"]
            torch.testing.assert_close(shards[0], whole[0], equal_nan=True, rtol=1e-5, atol=1e-6)
            assert shards[1] == whole[1]
            is_finite = all(value.isfinite().all() for value in shards[0].values())
            assert is_finite == (policy != "warn")
            assert len(shards[2]) == len(whole[2]), (policy, shards[2])
        assert found["True skipped"] == found["None skipped"] == 1
        error = found["True error"]
        assert (error.step, error.ranks) == (BAD, [1])
        assert str(error.first).startswith("batch field [0]: 1 nan of 32, in row 1 of 4")
    assert ranks[0]["True raise"][1] == BAD
    assert [len(found["True warn"][2]) > 0 for found in ranks] == [True, False]
