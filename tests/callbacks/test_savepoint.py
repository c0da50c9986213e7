from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics import CatMetric, MetricCollection, SumMetric

from lightning_recipes.callbacks.savepoint import Savepoint
from tests.callbacks.faulty import Net, fit, make_batches, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:Running in `barebones")


class Buffers(LightningModule):
    """Buffers that are changed in place and replaced, and one inside a part."""

    changed: Tensor
    replaced: Tensor
    absent: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("changed", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2), persistent=False)
        self.register_buffer("absent", None)
        self.part = torch.nn.BatchNorm1d(2)

    def step(self, number: float) -> None:
        self.changed += number
        self.replaced = self.replaced + number
        self.absent = torch.ones(1)
        self.part(torch.randn(4, 2))

    def values(self) -> list[Tensor]:
        return [buffer.clone() for buffer in self.buffers()]


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(accelerator="cpu", logger=False, barebones=True)


def test_buffers_are_those_of_the_newest_mark(trainer: Trainer) -> None:
    module = Buffers()
    savepoint = Savepoint(module)
    for number in (1.0, 2.0):
        savepoint.mark(trainer)
        expected, same = module.values(), module.changed
        module.step(number)
        module.step(number)
        savepoint.roll_back(trainer)
        assert module.changed is same
        assert module.values()[1].tolist() == [number - 1] * 2
        assert module.absent is None
        for one, other in zip(module.values(), expected, strict=True):
            assert torch.equal(one, other)
        module.step(1.0)
        module.absent = None


def test_a_buffer_may_change_its_shape(trainer: Trainer) -> None:
    module = Buffers()
    savepoint = Savepoint(module)
    for length in (2, 3):
        module.replaced = torch.arange(float(length))
        savepoint.mark(trainer)
        module.replaced = torch.zeros(7, dtype=torch.float64)
        savepoint.roll_back(trainer)
        assert module.replaced.tolist() == list(range(length))


class Lists(LightningModule):
    """Metrics that share a list, which the second one sees only when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        metrics: Any = {"a": CatMetric(), "b": CatMetric()}
        self.group = MetricCollection(metrics, compute_groups=[["a", "b"]])
        self.single = SumMetric()

    def update(self, value: float) -> None:
        self.group.update(torch.tensor([value]))
        self.single.update(torch.tensor(value))


def test_metrics_that_share_a_list_keep_what_came_before(trainer: Trainer) -> None:
    module = Lists()
    module.update(1.0)
    for metric in module.group.values(copy_state=False):
        metric.reset()  # one by one, as Lightning does at the end of an epoch
    module.single.reset()
    savepoint = Savepoint(module)
    module.update(1.0)
    module.update(2.0)
    savepoint.mark(trainer)
    module.update(3.0)
    module.group.compute()
    savepoint.roll_back(trainer)
    assert {key: v.tolist() for key, v in module.group.compute().items()} == {
        "a": [1.0, 2.0],
        "b": [1.0, 2.0],
    }
    assert module.single.compute() == 3
    assert module.single.update_count == 2


class Redo(Callback):
    """Takes the last two batches of each epoch back."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            self.savepoint = Savepoint(pl_module)
        if batch_idx == 2:
            self.savepoint.mark(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 3:
            self.savepoint.roll_back(trainer)


def test_means_of_an_epoch_are_rolled_back(tmp_path: Path) -> None:
    class Still(Net):
        """Logs what does not depend on the weights."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            value = batch["x"].mean()
            self.mean.update(value)
            self.log("average", value, batch_size=batch_idx + 1, on_step=False, on_epoch=True)
            self.log("sum", value, on_step=False, on_epoch=True, reduce_fx="sum")
            self.log("mean", self.mean, on_step=False, on_epoch=True)
            if batch_idx == 2:
                self.log("late", value, on_step=False, on_epoch=True, reduce_fx="max")
            return self.last(self.body(batch["x"])).sum()  # type: ignore[no-any-return]

    batches = make_batches(4)
    trainer = make_trainer(tmp_path, Redo(), max_epochs=2)
    fit(trainer, Still(), batches)
    one, two = (float(batch["x"].mean()) for batch in batches[:2])
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    assert metrics.pop("late", 0.0) != max(one, two)
    assert metrics == pytest.approx(
        {"average": (one + 2 * two) / 3, "sum": one + two, "mean": (one + two) / 2}
    )
