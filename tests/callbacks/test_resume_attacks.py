"""What real projects attach and override, resumed at every step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import MeanMetric

from tests.callbacks.matrix import Case, Project, first_difference, run

PLAIN = Case(
    length={"max_epochs": 3},
    validation={"val_check_interval": 0.5},
    workers={"num_workers": 0},
    accumulate=1,
    optimizer="momentum",
    schedule="none",
    precision="32-true",
    augmentation="torch",
    loaders="one",
    shuffled_validation=False,
    tensorboard=False,
)


def assert_exact(
    root: Path, make_callback: Callable[[], Callback] = Callback, **kwargs: Any
) -> None:
    """Resume from every file of a run, and compare each with that run."""
    whole = run(PLAIN, root / "whole", make_callback(), **kwargs)
    files = sorted((root / "whole" / "resume").glob("*.ckpt"))[:-1]
    assert len(files) > 4
    for path in files:
        resumed = run(PLAIN, root / path.stem, make_callback(), ckpt_path=path, **kwargs)
        for key in ("seen", "rows"):
            assert resumed[key] == whole[key][len(whole[key]) - len(resumed[key]) :], path.stem
        # that callbacks go on is the matrix's to show: here the folders of ModelCheckpoint remain
        for state in (whole, resumed):
            # not in the order in which they were logged
            state["callback_metrics"] = dict(sorted(state["callback_metrics"].items()))
            # learning rates show in the weights, but for the last epoch of a weight averaging,
            # which trains nothing
            state["moments"] = [optimizer["state"] for optimizer in state["optimizers"]]
        for key in ("weights", "moments", "global_step", "callback_metrics"):
            assert first_difference(resumed[key], whole[key]) is None, path.stem


class AugmentingProject(Project):
    """Augments the batch where users of a GPU do."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        points, indices = batch
        return points + 0.1 * torch.randn_like(points), indices


def test_batch_is_augmented_the_same_before_it_starts(tmp_path: Path) -> None:
    assert_exact(tmp_path, module=AugmentingProject)


@pytest.mark.filterwarnings("ignore:.*swa:UserWarning", "ignore:Swapping scheduler")
@pytest.mark.parametrize(
    "make_callback",
    [
        lambda: GradientAccumulationScheduler({0: 3, 1: 1, 2: 2}),
        lambda: StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2),
    ],
    ids=["accumulation", "weight averaging"],
)
def test_callback_that_prepares_the_epoch(
    make_callback: Callable[[], Callback], tmp_path: Path
) -> None:
    assert_exact(tmp_path, make_callback)


class PartlyEvaluatingProject(Project):
    """Holds the statistics of its batch normalisation fixed, from the second epoch on."""

    def on_train_epoch_start(self) -> None:
        self.body.train(self.current_epoch < 1)


def test_part_in_evaluation_mode(tmp_path: Path) -> None:
    assert_exact(tmp_path, module=PartlyEvaluatingProject)


class Unfreezing(BaseFinetuning):
    """Trains the head alone in the first epoch."""

    def freeze_before_training(self, pl_module: LightningModule) -> None:
        self.freeze(pl_module.body, train_bn=False)

    def finetune_function(
        self, pl_module: LightningModule, epoch: int, optimizer: Optimizer
    ) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.body, optimizer, lr=0.003)


class HeadFirstProject(Project):
    """Gives the optimizer what is not frozen."""

    def configure_optimizers(self) -> Optimizer:
        trained = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.SGD(trained, lr=0.01, momentum=0.9)


def test_frozen_part(tmp_path: Path) -> None:
    assert_exact(tmp_path, Unfreezing, module=HeadFirstProject)


class LearningRateProject(Project):
    """Has its learning rate found."""

    lr = 0.01

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@pytest.mark.filterwarnings("ignore:The loaded checkpoint was not produced with Lightning")
def test_learning_rate_is_found_once(tmp_path: Path) -> None:
    def finder() -> Callback:
        return LearningRateFinder(num_training_steps=5, update_attr=False)

    whole = run(PLAIN, tmp_path / "whole", finder(), module=LearningRateProject)
    path = tmp_path / "whole" / "resume" / "step=000000004.ckpt"
    with pytest.raises(MisconfigurationException, match=r"step 4 .* Resume without them"):
        run(PLAIN, tmp_path / "again", finder(), module=LearningRateProject, ckpt_path=path)
    resumed = run(PLAIN, tmp_path / "resumed", module=LearningRateProject, ckpt_path=path)
    assert first_difference(resumed["weights"], whole["weights"]) is None


class PartlyLoggingProject(Project):
    """Logs some values in a part of the epoch only."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.early_mean = MeanMetric()

    def on_train_epoch_start(self) -> None:
        self.log("start", torch.rand(()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        if batch_idx < 2:
            self.log("early", torch.rand(()), on_step=True, on_epoch=True, batch_size=3)
            self.log("least", torch.rand(()), on_step=False, on_epoch=True, reduce_fx="min")
            self.log("step", torch.rand(()), on_step=True, on_epoch=False)
            self.early_mean.update(torch.rand(()))
            self.log("early_mean", self.early_mean, on_step=False, on_epoch=True)
        return loss


def test_value_logged_in_the_first_part_of_an_epoch_only(tmp_path: Path) -> None:
    assert_exact(tmp_path, module=PartlyLoggingProject)


class EndingEpochProject(Project):
    """Ends the first epoch at its fifth batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 4 and self.current_epoch == 0 else None


def test_epoch_that_ends_at_the_first_resumed_batch(tmp_path: Path) -> None:
    assert_exact(tmp_path, module=EndingEpochProject)
