"""Every sample of an evaluation counts once, whatever the number of samples, ranks and batches."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryF1Score

from lightning_recipes import LengthBuckets, RecipeModule, ResumableDataLoader, Step
from tests.ranks import run_trainer_ranks

NAMES = ("loss", "accuracy", "f1", "auroc")
# samples, batch size per rank
TWO_RANKS = [(5, 2), (6, 2), (3, 4), (23, 4)]
THREE_RANKS = [(5, 2), (22, 4)]


class Scores(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Sample i has the loss i, a score and a class."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(length)
        self.target = torch.arange(length) % 2
        self.scores = torch.rand(length, generator=generator)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tensor(float(index)), self.scores[index], self.target[index]


class Scored(RecipeModule):
    """With a batch normalisation, whose buffers DDP brings into line before each pass."""

    def __init__(self) -> None:
        metrics = MetricCollection(
            {"accuracy": BinaryAccuracy(), "f1": BinaryF1Score(), "auroc": BinaryAUROC()}
        )
        super().__init__(optimizer=torch.optim.SGD, metrics=metrics)
        self.network = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def step(self, batch: Any) -> Step:
        values, scores, target = batch
        nothing = 0 * self.network(values[:, None]).sum()
        return Step(values.mean() + nothing, len(values), scores, target)


def expected(length: int) -> dict[str, float]:
    data = Scores(length)
    scores, target = data.scores.numpy(), data.target.numpy()
    return {
        "loss": (length - 1) / 2,
        "accuracy": accuracy_score(target, scores > 0.5),
        "f1": f1_score(target, scores > 0.5),
        "auroc": roc_auc_score(target, scores),
    }


def _loader(length: int, batch_size: int, plan: str) -> ResumableDataLoader:
    buckets = LengthBuckets(torch.arange(length) % 5 + 1) if plan == "buckets" else None
    return ResumableDataLoader(Scores(length), batch_size, buckets=buckets)


def _evaluate_on_rank(devices: int, cases: list[tuple[int, int]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    for length, batch_size in cases:
        for plan in ("uniform", "buckets"):
            module: nn.Module = Scored()
            if plan == "buckets":  # Lightning would convert them on a GPU only
                module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
            loader = _loader(length, batch_size, plan)
            (seen,) = trainer.validate(module, loader, verbose=False)  # type: ignore[arg-type]
            found[length, batch_size, plan] = [seen[f"val/{name}"] for name in NAMES]
    return found


@pytest.mark.parametrize(("world_size", "cases"), [(2, TWO_RANKS), (3, THREE_RANKS)])
def test_every_sample_counts_once(world_size: int, cases: list[tuple[int, int]]) -> None:
    ranks = run_trainer_ranks(_evaluate_on_rank, world_size, cases, world_size=world_size)
    for found in ranks:
        assert len(found) == 2 * len(cases)
        for (length, *_), values in found.items():
            wanted = [expected(length)[name] for name in NAMES]
            assert values == pytest.approx(wanted, abs=1e-6)
