"""Every Trainer option that rebuilds, cuts or repeats a loader, on real Trainer runs."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_recipes import (
    Classifier,
    RecipeDataModule,
    RecipeModule,
    ResumableDataLoader,
    Step,
)
from tests.ranks import run_trainer_ranks

pytestmark = pytest.mark.filterwarnings(
    # Lightning takes every loader for a shuffled one whose sampler is not torch's sequential one
    "ignore:You requested to overfit but enabled"
)
each_source = pytest.mark.parametrize("source", ["datamodule", "hooks", "loaders"])

Batches = list[list[int]]


class Noise(Dataset[tuple[Tensor, int]]):
    """Random features, and the index as the target."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3), index


class Model(RecipeModule):
    """Predicts the index of each sample, which the batch holds as its target."""

    def __init__(self) -> None:
        super().__init__(optimizer=torch.optim.SGD)
        self.layer = nn.Linear(3, 1)

    def step(self, batch: Any) -> Step:
        inputs, target = batch
        return Step(self.layer(inputs).square().mean(), len(target))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        indices: Tensor = batch[1]
        return indices


class Data(RecipeDataModule):
    """16 samples to train on, 7 for everything else."""

    def setup(self, stage: str) -> None:
        self.train_set = Noise(16)
        self.val_set = self.predict_set = Noise(7)


class Hooks(LightningDataModule):
    """The same without the base class; the batch size is positional."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> ResumableDataLoader:
        return ResumableDataLoader(Noise(16), self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> ResumableDataLoader:
        return ResumableDataLoader(Noise(7), self.batch_size)

    predict_dataloader = val_dataloader


class Seen(Callback):
    """The indices of every batch, by training epoch and by validation."""

    def __init__(self) -> None:
        self.train: list[Batches] = []
        self.val: list[Batches] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train.append([])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.train[-1].append(batch[1].tolist())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.val.append([])

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.val[-1].append(batch[1].tolist())


class Writer(BasePredictionWriter):
    """Which indices Lightning says that each batch of predictions has."""

    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.by_batch: Batches = []
        self.by_epoch: Batches = []

    def write_on_batch_end(self, *args: Any) -> None:
        _, _, _, batch_indices, *_ = args
        self.by_batch.append(list(batch_indices))

    def write_on_epoch_end(self, *args: Any) -> None:
        *_, batch_indices = args
        self.by_epoch = [list(batch) for batch in batch_indices[0]]


def make_trainer(**options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit(source: str, batch_size: int = 4, **options: Any) -> Seen:
    seen = Seen()
    trainer = make_trainer(
        **{"max_epochs": 2, "num_sanity_val_steps": 0, "callbacks": [seen], **options}
    )
    if source == "datamodule":
        trainer.fit(Model(), datamodule=Data(batch_size=batch_size))
    elif source == "hooks":
        trainer.fit(Model(), datamodule=Hooks(batch_size))
    else:
        hooks = Hooks(batch_size)
        trainer.fit(Model(), hooks.train_dataloader(), hooks.val_dataloader())
    return seen


def predict(source: str, batch_size: int = 2, **options: Any) -> tuple[Batches, Writer]:
    writer = Writer()
    trainer = make_trainer(callbacks=[writer], **options)
    if source == "datamodule":
        outputs = trainer.predict(Model(), datamodule=Data(batch_size=batch_size))
    elif source == "hooks":
        outputs = trainer.predict(Model(), datamodule=Hooks(batch_size))
    else:
        outputs = trainer.predict(Model(), Hooks(batch_size).predict_dataloader())
    return as_lists(outputs), writer


def as_lists(batches: Any) -> Batches:
    return [indices.tolist() for indices in batches]


def epoch_batches(epoch: int, batch_size: int = 4) -> Batches:
    """Return the batches of an epoch as a loader without a Trainer has them."""
    loader = Hooks(batch_size).train_dataloader()
    loader.set_epoch(epoch)
    return as_lists(indices for _, indices in loader)


@each_source
def test_a_plain_run_trains_every_sample_in_a_new_order_and_validates_in_order(
    source: str,
) -> None:
    seen = fit(source, num_sanity_val_steps=1)
    assert seen.train == [epoch_batches(0), epoch_batches(1)]
    for epoch in seen.train:
        assert sorted(index for batch in epoch for index in batch) == list(range(16))
    assert seen.train[0] != seen.train[1]
    assert seen.val == [[[0, 1, 2, 3]], *[[[0, 1, 2, 3], [4, 5, 6]]] * 2]


@each_source
def test_overfit_batches_repeats_the_first_batches_in_order(source: str) -> None:
    seen = fit(source, overfit_batches=2)
    assert seen.train == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2
    assert seen.val == [[[0, 1, 2, 3], [4, 5, 6]]] * 2


@each_source
def test_limits_cut_an_epoch_and_the_next_is_a_new_one(source: str) -> None:
    seen = fit(source, limit_train_batches=3, limit_val_batches=1)
    assert seen.train == [epoch_batches(0)[:3], epoch_batches(1)[:3]]
    assert seen.val == [[[0, 1, 2, 3]]] * 2


@each_source
def test_reloading_the_loaders_every_epoch_changes_nothing(source: str) -> None:
    seen = fit(source, reload_dataloaders_every_n_epochs=1)
    plain = fit(source)
    assert (seen.train, seen.val) == (plain.train, plain.val)


@each_source
def test_fast_dev_run_takes_one_batch(source: str) -> None:
    seen = fit(source, fast_dev_run=True)
    assert (seen.train, seen.val) == ([epoch_batches(0)[:1]], [[[0, 1, 2, 3]]])


@each_source
def test_every_validation_within_an_epoch_sees_the_same_batches(source: str) -> None:
    seen = fit(source, val_check_interval=0.5)
    assert seen.val == [[[0, 1, 2, 3], [4, 5, 6]]] * 4
    assert seen.train == [epoch_batches(0), epoch_batches(1)]


@each_source
def test_predict_keeps_order_and_count_and_tells_the_writer_the_indices(source: str) -> None:
    outputs, writer = predict(source)
    assert outputs == [[0, 1], [2, 3], [4, 5], [6]]
    assert writer.by_batch == writer.by_epoch == outputs


def test_a_loader_that_drops_the_last_batch_still_predicts_every_sample() -> None:
    loader = ResumableDataLoader(Noise(7), 2, drop_last=True)
    assert as_lists(make_trainer().predict(Model(), loader)) == [[0, 1], [2, 3], [4, 5], [6]]


def test_the_indices_a_writer_gets_can_be_saved_and_loaded(tmp_path: Any) -> None:
    _, writer = predict("datamodule")
    torch.save(writer.by_batch, tmp_path / "indices.pt")
    assert torch.load(tmp_path / "indices.pt", weights_only=True) == writer.by_batch


def test_a_loader_serves_prediction_and_fit_in_turn() -> None:
    loader = Hooks(2).predict_dataloader()
    trainer = make_trainer(max_epochs=1)
    for _ in range(2):
        assert as_lists(trainer.predict(Model(), loader)) == [[0, 1], [2, 3], [4, 5], [6]]
        assert as_lists(indices for _, indices in loader) == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_training_run_ends_with_the_same_weights_for_any_number_of_workers() -> None:
    def train(num_workers: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 16))
        model = Classifier(network, num_classes=16)
        trainer = make_trainer(max_epochs=2, num_sanity_val_steps=0)
        trainer.fit(model, datamodule=Data(batch_size=4, num_workers=num_workers))
        return network.state_dict()

    alone, two_workers = train(0), train(2)
    for name, weights in alone.items():
        assert torch.equal(weights, two_workers[name]), name


# --- two real ranks -------------------------------------------------------------------------------


def _run_on_rank() -> dict[str, Any]:
    ranks: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    results: dict[str, Any] = {}
    for source in ("datamodule", "loaders"):
        for use_distributed_sampler in (True, False):
            seen = fit(source, 2, use_distributed_sampler=use_distributed_sampler, **ranks)
            results[f"{source}, {use_distributed_sampler}"] = (seen.train, seen.val)
        results[f"overfit {source}"] = fit(source, 2, overfit_batches=2, **ranks).train
        outputs, writer = predict(source, **ranks)
        results[f"predict {source}"] = (outputs, writer.by_batch, writer.by_epoch)
    return results


@pytest.fixture(scope="module")
def rank_results() -> list[dict[str, Any]]:
    return run_trainer_ranks(_run_on_rank)


@pytest.mark.parametrize("use_distributed_sampler", [True, False])
@pytest.mark.parametrize("source", ["datamodule", "loaders"])
def test_two_ranks_share_the_batches_of_one(
    rank_results: list[dict[str, Any]], source: str, use_distributed_sampler: bool
) -> None:
    one, two = (result[f"{source}, {use_distributed_sampler}"] for result in rank_results)
    for epoch in range(2):
        shares = zip(one[0][epoch], two[0][epoch], strict=True)
        assert [first + second for first, second in shares] == epoch_batches(epoch)
    assert one[1] == [[[0, 1], [4]]] * 2
    assert two[1] == [[[2, 3], [5, 6]]] * 2


@pytest.mark.parametrize("source", ["datamodule", "loaders"])
def test_overfitting_on_two_ranks_repeats_the_first_global_batches(
    rank_results: list[dict[str, Any]], source: str
) -> None:
    one, two = (result[f"overfit {source}"] for result in rank_results)
    assert one == [[[0, 1], [4, 5]]] * 2
    assert two == [[[2, 3], [6, 7]]] * 2


@pytest.mark.parametrize("source", ["datamodule", "loaders"])
def test_two_ranks_predict_every_sample_once(
    rank_results: list[dict[str, Any]], source: str
) -> None:
    flat = []
    for outputs, by_batch, by_epoch in (result[f"predict {source}"] for result in rank_results):
        assert by_batch == by_epoch == outputs
        of_rank = [index for batch in outputs for index in batch]
        assert of_rank == sorted(of_rank)
        flat += of_rank
    assert sorted(flat) == list(range(7))
