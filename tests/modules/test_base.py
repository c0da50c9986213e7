import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanAbsoluteError

from lightning_recipes import RecipeModule, ResumableDataLoader, Step
from tests.ranks import run_trainer_ranks


def make_trainer(**options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


class Scores(Dataset[tuple[Tensor, Tensor, int]]):
    """Sample i has loss i, and is classified right if i is not a multiple of 3."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return torch.tensor(float(index)), torch.eye(2)[int(index % 3 == 0)], 0


class Scored(RecipeModule):
    def __init__(self, **options: Any) -> None:
        super().__init__(
            metrics=MetricCollection({"accuracy": MulticlassAccuracy(2, average="micro")}),
            **options,
        )
        self.layer = nn.Linear(2, 1)

    def step(self, batch: Any) -> Step:
        values, logits, target = batch
        unused = 0 * self.layer(logits).sum()
        return Step(values.mean() + unused, len(values), logits, target)


class Prepared(RecipeModule):
    """Every batch holds the fields of its step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.layer = nn.Linear(2, 1)
        self.norm = nn.LayerNorm(3)

    def step(self, batch: Any) -> Step:
        zero = torch.stack([0 * parameter.sum() for parameter in self.parameters()]).sum()
        return Step(**{**batch, "loss": batch["loss"] + zero})


def batches(*steps: dict[str, Any]) -> DataLoader[Any]:
    prepared: Any = list(steps)
    return DataLoader(prepared, batch_size=None, collate_fn=lambda step: step)


LOSS_OF_ONE = batches({"loss": torch.tensor(1.0), "count": 1})


def mean(values: Any) -> float:
    values = list(values)
    return float(sum(values) / len(values))


# --- logging --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["validate", "test"])
@pytest.mark.parametrize("count", [int, torch.tensor], ids=["int", "0-d tensor"])
@pytest.mark.parametrize("shapes", [[(1, 5), (3, 5)], [(5, 1), (5, 3)]], ids=["(B, T)", "(T, B)"])
def test_an_evaluations_loss_weighs_every_sample_alike(
    stage: str, count: Callable[[int], Any], shapes: list[tuple[int, int]]
) -> None:
    steps = [
        {"loss": torch.tensor(loss), "count": count(num_samples), "preds": torch.zeros(shape)}
        for loss, num_samples, shape in zip((0.0, 1.0), (1, 3), shapes, strict=True)
    ]
    trainer = make_trainer()
    (logged,) = getattr(trainer, stage)(Prepared(), batches(*steps), verbose=False)
    assert logged == {f"{'val' if stage == 'validate' else 'test'}/loss": 0.75}


def test_metrics_are_kept_apart_by_stage() -> None:
    module = Scored()
    trainer = make_trainer(max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(module, ResumableDataLoader(Scores(2), 2), ResumableDataLoader(Scores(4), 4))
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert logged == {
        "train/loss": 0.5,
        "train/accuracy": 0.5,
        "val/loss": 1.5,
        "val/accuracy": 0.5,
    }
    (tested,) = trainer.test(module, ResumableDataLoader(Scores(6), 4), verbose=False)
    assert tested == {"test/loss": 2.5, "test/accuracy": pytest.approx(4 / 6)}


def test_without_preds_the_metrics_are_left_alone() -> None:
    module = Prepared(metrics=MeanAbsoluteError())
    (logged,) = make_trainer().validate(module, LOSS_OF_ONE, verbose=False)
    assert logged["val/loss"] == 1
    assert not module.val_metrics["MeanAbsoluteError"].update_called


def test_predictions_are_the_preds_of_the_step() -> None:
    outputs: Any = make_trainer().predict(Scored(), ResumableDataLoader(Scores(5), 2))
    expected = torch.stack([logits for _, logits, _ in (Scores(5)[i] for i in range(5))])
    assert torch.cat(outputs).equal(expected)


# --- optimizer ------------------------------------------------------------------------------------


def test_only_matrices_decay() -> None:
    """With no gradient, SGD's step is p - lr * weight_decay * p."""
    module = Prepared(optimizer=partial(torch.optim.SGD, lr=0.1, weight_decay=0.5))
    torch.nn.init.ones_(module.layer.bias)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    make_trainer(fast_dev_run=True).fit(module, LOSS_OF_ONE, LOSS_OF_ONE)
    for name, parameter in module.named_parameters():
        factor = 0.95 if name == "layer.weight" else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_one_rank_scales_no_learning_rate() -> None:
    module = Scored(optimizer=partial(torch.optim.SGD, lr=0.5), lr_scaling="linear")
    trainer = make_trainer(fast_dev_run=True)
    trainer.fit(module, ResumableDataLoader(Scores(2), 2), ResumableDataLoader(Scores(2), 2))
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == [0.5, 0.5]


def test_an_unknown_scaling_is_refused_at_construction() -> None:
    with pytest.raises(ValueError, match=r"lr_scaling must be one of .*, got 'cubic'"):
        Scored(lr_scaling="cubic")


def test_it_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        RecipeModule()  # type: ignore[abstract]


# --- real ranks -----------------------------------------------------------------------------------

LENGTHS = (1, 2, 5, 8, 9)


def _evaluate(trainer: Trainer) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for length in LENGTHS:
        for run in (trainer.validate, trainer.test):
            (logged,) = run(Scored(), ResumableDataLoader(Scores(length), 2), verbose=False)
            results[f"{run.__name__} {length}"] = logged
    loaders = [ResumableDataLoader(Scores(length), 2) for length in (8, 5)]
    results["two loaders"] = trainer.validate(Scored(), loaders, verbose=False)
    return results


def _run_on_rank() -> dict[str, Any]:
    assert os.environ["WORLD_SIZE"] == "2"
    results = _evaluate(make_trainer(devices=2, strategy="ddp"))
    for rule in ("none", "sqrt", "linear"):
        module = Scored(optimizer=partial(torch.optim.SGD, lr=0.5), lr_scaling=rule)
        trainer = make_trainer(devices=2, strategy="ddp", max_epochs=1, num_sanity_val_steps=0)
        trainer.fit(module, ResumableDataLoader(Scores(8), 2), ResumableDataLoader(Scores(5), 2))
        results[f"lr {rule}"] = [group["lr"] for group in trainer.optimizers[0].param_groups]
        results["fit"] = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return results


@pytest.fixture(scope="module")
def rank_results() -> list[dict[str, Any]]:
    return run_trainer_ranks(_run_on_rank)


@pytest.mark.parametrize("length", LENGTHS)
def test_two_ranks_evaluate_every_sample_once(
    rank_results: list[dict[str, Any]], length: int
) -> None:
    loss = mean(range(length))
    accuracy = pytest.approx(mean(index % 3 > 0 for index in range(length)))
    for results in (*rank_results, _evaluate(make_trainer())):
        assert results[f"validate {length}"] == {"val/loss": loss, "val/accuracy": accuracy}
        assert results[f"test {length}"] == {"test/loss": loss, "test/accuracy": accuracy}


def test_two_ranks_evaluate_each_of_several_loaders(rank_results: list[dict[str, Any]]) -> None:
    for results in rank_results:
        first, second = results["two loaders"]
        assert first["val/loss/dataloader_idx_0"] == mean(range(8))
        assert second["val/loss/dataloader_idx_1"] == mean(range(5))


def test_two_ranks_validate_alike_within_a_fit(rank_results: list[dict[str, Any]]) -> None:
    for results in rank_results:
        assert results["fit"]["val/loss"] == mean(range(5))
        assert results["fit"]["val/accuracy"] == pytest.approx(3 / 5)
        assert results["fit"]["train/accuracy"] == pytest.approx(5 / 8)


def test_learning_rate_grows_with_the_ranks(rank_results: list[dict[str, Any]]) -> None:
    for results in rank_results:
        assert results["lr none"] == [0.5, 0.5]
        assert results["lr sqrt"] == [0.5 * math.sqrt(2)] * 2
        assert results["lr linear"] == [1.0, 1.0]
