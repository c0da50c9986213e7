"""A run that goes on with another number of ranks."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_recipes import ResumeCheckpoint
from tests.project import PointsDataModule, make_module, make_trainer
from tests.ranks import run_trainer_ranks

GLOBAL_BATCH_SIZE = 4


class Batches(Callback):
    """What each batch held, augmentation and all, and a draw of torch's generator at each."""

    def __init__(self) -> None:
        self.points: list[torch.Tensor] = []
        self.draws: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.points.append(batch[0])
        self.draws.append(torch.rand(()).item())


def fit(
    root: Path, ckpt_path: Path | None, batch_size: int | None = None, **options: Any
) -> dict[str, Any]:
    batches, world_size = Batches(), int(os.environ.get("WORLD_SIZE", 1))
    trainer = make_trainer(
        root, batches, devices=world_size, strategy="ddp" if world_size > 1 else "auto"
    )
    trainer.callbacks[0] = ResumeCheckpoint(every_n_steps=1, keep_last=None, **options)  # type: ignore[attr-defined]
    trainer.callbacks[1].total_steps = 18  # type: ignore[attr-defined]
    per_rank = batch_size or GLOBAL_BATCH_SIZE // world_size
    data = PointsDataModule(batch_size=per_rank, num_workers=0, seed=5)
    trainer.fit(make_module(), data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return {
        "points": batches.points,
        "draws": batches.draws,
        "accuracy": trainer.callback_metrics["train/accuracy"],
        "weights": trainer.lightning_module.state_dict(),
    }


def joined(ranks: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*(rank["points"] for rank in ranks), strict=True)]


def checkpoint(root: Path, step: int) -> Path:
    return root / "resume" / f"step={step:09d}.ckpt"


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


WARNING = r"saved with {} ranks and goes on with {}"


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("two")
    return root, run_trainer_ranks(fit, root, None)


def test_from_two_ranks_to_one(on_two: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    root, whole = on_two
    with pytest.warns(UserWarning, match=WARNING.format(2, 1)):
        resumed = fit(tmp_path / "a", checkpoint(root, 8))
    assert same(resumed["points"], joined(whole)[8:])
    with pytest.warns(UserWarning, match=WARNING.format(2, 1)):
        again = fit(tmp_path / "b", checkpoint(root, 8))
    assert again["draws"] == resumed["draws"]
    assert not set(resumed["draws"]) & {draw for rank in whole for draw in rank["draws"]}


def test_from_one_rank_to_two(tmp_path: Path) -> None:
    whole = fit(tmp_path / "one", None)
    resumed = run_trainer_ranks(fit, tmp_path / "two", checkpoint(tmp_path / "one", 8))
    assert same(joined(resumed), whole["points"][8:])
    assert not set(resumed[0]["draws"]) & set(resumed[1]["draws"])


def test_running_means_of_all_ranks_are_carried_over(
    on_two: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    root, whole = on_two
    # before the last batch of the run: 20 of the epoch's 24 samples were seen by two ranks
    with pytest.warns(UserWarning, match=WARNING.format(2, 1)):
        resumed = fit(tmp_path, checkpoint(root, 17))
    # dropout differs in the last batch, so at most its four samples may count otherwise
    assert abs(resumed["accuracy"] - whole[0]["accuracy"]) <= 4 / 24
    seen = float(resumed["accuracy"]) * 24
    assert seen == pytest.approx(round(seen), abs=1e-4)


def test_another_global_batch_is_refused_or_goes_on_at_the_nearest_sample(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", None)
    saved = checkpoint(tmp_path / "whole", 8)  # two batches of four into the second epoch
    with pytest.raises(ValueError, match=r"global_batch_size=4, this loader 3"):
        fit(tmp_path / "refused", saved, batch_size=3)
    resumed = fit(tmp_path / "nearest", saved, batch_size=3, on_new_batch_size="nearest")
    epoch = torch.cat(whole["points"][6:12])
    # eight samples were seen, and six is where a batch of three begins
    assert same([torch.cat(resumed["points"][:6])], [epoch[6:]])
