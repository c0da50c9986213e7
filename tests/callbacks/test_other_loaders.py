"""ResumeCheckpoint with loaders that are not ours."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from lightning_recipes import ResumeCheckpoint, resumable
from tests.callbacks.matrix import first_difference
from tests.ranks import run_trainer_ranks

pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated",  # torchdata 0.11 on torch 2.13
    # Lightning, of loaders as they are used here
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
    "ignore:Detected .* where the dataset is iterable",
)


class Numbers(Dataset[Tensor]):
    """The numbers 0..23, one in each sample."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


class Stream(IterableDataset[Tensor]):
    """Numbers without an end that is known, from a start that differs by rank."""

    def __init__(self, start: int, num_samples: int = 24) -> None:
        self.start = start
        self.num_samples = num_samples
        self.position = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.position < self.num_samples:
            self.position += 1
            yield torch.tensor([float(self.start + self.position)])
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Model(LightningModule):
    """Remembers its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[list[float]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append(batch.flatten().tolist())
        loss: Tensor = (self.layer(batch.sin()) + torch.rand(1)).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(loader: Any, root: Path, ckpt_path: Path | None, **kwargs: Any) -> dict[str, Any]:
    callback: Callback = ResumeCheckpoint(every_n_steps=1, keep_last=None)
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[callback],
        default_root_dir=str(root),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=3,
        **kwargs,
    )
    module = Model()
    trainer.fit(module, loader, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return {"weights": module.state_dict(), "seen": module.seen}


def stateful(num_workers: int, **kwargs: Any) -> Any:
    return StatefulDataLoader(Numbers(), batch_size=4, num_workers=num_workers, **kwargs)


def stream(num_workers: int) -> Any:
    return StatefulDataLoader(Stream(0), batch_size=4, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [stateful, stream])
def test_stateful_loader_goes_on_exactly(
    make: Callable[[int], Any], num_workers: int, tmp_path: Path
) -> None:
    seed_everything(1, verbose=False)
    whole = fit(make(num_workers), tmp_path / "whole", None)
    files = sorted((tmp_path / "whole" / "resume").glob("*.ckpt"))[:-1]
    # Where Lightning fetches ahead, the second batch of a later epoch is no moment to save.
    assert len(files) == len(whole["seen"]) - (3 if make is stream else 1)
    for path in files if num_workers == 0 else files[2::6]:
        resumed = fit(make(num_workers), tmp_path / path.stem, path)
        step = int(path.stem.removeprefix("step="))
        assert resumed["seen"] == whole["seen"][step:], path.stem
        assert first_difference(resumed["weights"], whole["weights"]) is None


def fit_on_a_rank(root: Path, ckpt_path: Path | None) -> list[list[float]]:
    rank = int(os.environ["RANK"])
    seed_everything(1, verbose=False)
    loader = StatefulDataLoader(Stream(1000 * rank), batch_size=4)
    seen: list[list[float]] = fit(loader, root, ckpt_path, devices=2, strategy="ddp")["seen"]
    return seen


def test_each_rank_gets_its_own_stream_back(tmp_path: Path) -> None:
    whole = run_trainer_ranks(fit_on_a_rank, tmp_path / "whole", None)
    path = tmp_path / "whole" / "resume" / "step=000000008.ckpt"
    resumed = run_trainer_ranks(fit_on_a_rank, tmp_path / "resumed", path)
    assert resumed == [seen[8:] for seen in whole]
    assert whole[0] != whole[1]


def test_plain_loader_is_warned_of_with_the_cure(tmp_path: Path) -> None:
    seed_everything(1, verbose=False)
    with pytest.warns(UserWarning, match=r"DataLoader has no position.*resumable\(loader\)"):
        fit(DataLoader(Numbers(), batch_size=4), tmp_path, None)


def test_the_cure_is_one_line(tmp_path: Path) -> None:
    def loader() -> Any:
        return resumable(DataLoader(Numbers(), batch_size=4, shuffle=True), seed=5)

    seed_everything(1, verbose=False)
    whole = fit(loader(), tmp_path / "whole", None)
    path = tmp_path / "whole" / "resume" / "step=000000008.ckpt"
    resumed = fit(loader(), tmp_path / "resumed", path)
    assert resumed["seen"] == whole["seen"][8:]
    assert first_difference(resumed["weights"], whole["weights"]) is None
