import copy
import pickle
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from lightning_recipes.modules.logged_in_place import leave_logged_in_place

VALUES = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])


class Logs(LightningModule):
    """Logs a value, its mean and a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.mean = MeanMetric()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.mean.update(batch)
        self.log("step", batch.sum())
        self.log("epoch", batch.mean(), on_epoch=True, batch_size=len(batch))
        self.log("metric", self.mean, on_epoch=True, on_step=False)
        return self.weight * batch.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class InPlace(Callback):
    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        leave_logged_in_place(trainer)
        self.results = dict(trainer._results or {})


def fit(root: Path, *callbacks: Callback) -> dict[str, Tensor]:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=list(callbacks),
        default_root_dir=root,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Logs(), DataLoader(VALUES, batch_size=2))  # type: ignore[arg-type]
    return dict(trainer.callback_metrics)


def test_what_is_logged_stays_the_same(tmp_path: Path) -> None:
    in_place = InPlace()
    metrics = fit(tmp_path, in_place)
    assert metrics == fit(tmp_path)
    assert float(metrics["epoch"]) == float(metrics["metric"]) == pytest.approx(31 / 5)
    assert len(in_place.results) == 3
    for result in in_place.results.values():
        meta = result.meta
        assert result.to(torch.device("cpu")) is result
        assert result.meta is meta  # Lightning's search copies it


def test_a_value_on_another_device_takes_its_mean_there(tmp_path: Path) -> None:
    in_place = InPlace()
    fit(tmp_path, in_place)
    result = in_place.results["training_step.epoch"]
    for other in (result, copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        other.to(torch.device("meta"))
        assert other.value.device.type == other.cumulated_batch_size.device.type == "meta"


def test_lightning_has_not_moved_it() -> None:
    message = f"Lightning {lightning.__version__} moved {{}}, on which logged_in_place.py relies."
    assert callable(getattr(_ResultMetric, "to", None)), message.format("_ResultMetric.to")
    assert hasattr(Trainer, "_results"), message.format("Trainer._results")
