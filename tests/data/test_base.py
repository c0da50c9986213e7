import os
from typing import Any

import pytest
from lightning.pytorch import Trainer
from torch.utils.data import Dataset

from lightning_recipes import PadCollate, Padded, RecipeDataModule
from lightning_recipes.data.base import _auto_num_workers


class Numbers(RecipeDataModule):
    """Whole numbers below a length that tells the data sets apart."""

    def setup(self, stage: str) -> None:
        self.train_set = _numbers(10)
        self.val_set = _numbers(7)
        self.test_set = _numbers(8)
        self.predict_set = _numbers(9)


class Unset(RecipeDataModule):
    def setup(self, stage: str) -> None:
        pass


def _numbers(length: int) -> Dataset[int]:
    numbers: Any = range(length)
    return numbers  # type: ignore[no-any-return]


def make(**arguments: Any) -> Numbers:
    data = Numbers(**arguments)
    data.setup("fit")
    return data


def test_training_is_shuffled_and_drops_an_incomplete_batch() -> None:
    loader = make(batch_size=4).train_dataloader()
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    assert [len(batch) for batch in first] == [4, 4]
    assert len({i for batch in first for i in batch}) == 8
    assert first != second


@pytest.mark.parametrize(("stage", "length"), [("val", 7), ("test", 8), ("predict", 9)])
def test_evaluation_is_in_order_and_complete(stage: str, length: int) -> None:
    loader = getattr(make(batch_size=4), f"{stage}_dataloader")()
    batches = [batch.tolist() for batch in loader]
    assert batches[0] == [0, 1, 2, 3]
    assert [i for batch in batches for i in batch] == list(range(length))


def test_evaluation_may_have_a_batch_size_of_its_own() -> None:
    data = make(batch_size=2, eval_batch_size=5)
    assert [len(batch) for batch in data.val_dataloader()] == [5, 2]
    assert [len(batch) for batch in data.train_dataloader()] == [2] * 5


def test_the_seed_selects_the_order() -> None:
    def order(seed: int) -> list[int]:
        (batch,) = make(batch_size=10, seed=seed).train_dataloader()
        return list(batch.tolist())

    assert order(0) == order(0) != order(1)


def test_collate_fn_makes_the_batches() -> None:
    class Ragged(RecipeDataModule):
        def setup(self, stage: str) -> None:
            sequences: Any = [[1], [2, 3], [4, 5, 6]]
            self.val_set = sequences

    data = Ragged(batch_size=3, collate_fn=PadCollate())
    data.setup("fit")
    (batch,) = data.val_dataloader()
    assert isinstance(batch, Padded)
    assert batch.lengths.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("num_cpus", "ranks", "device_type", "expected"),
    [
        (16, 1, "cpu", 0),  # training takes all cores itself
        (4, 1, "cuda", 3),  # one core is left to the training
        (16, 4, "cuda", 3),
        (64, 1, "cuda", 8),  # more would not help
        (1, 1, "cuda", 0),
        (2, 8, "cuda", 0),
    ],
)
def test_automatic_workers_fit_the_cpus_the_ranks_and_the_accelerator(
    monkeypatch: pytest.MonkeyPatch, num_cpus: int, ranks: int, device_type: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cpus)), raising=False)
    assert _auto_num_workers(ranks, device_type) == expected


def test_workers_are_kept_between_epochs_and_memory_is_pinned_for_an_accelerator_only() -> None:
    loader = make(num_workers=1).train_dataloader()
    assert (loader.num_workers, loader.persistent_workers, loader.pin_memory) == (1, True, False)
    data = make()
    data.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    loader = data.train_dataloader()
    assert (loader.num_workers, loader.persistent_workers, loader.pin_memory) == (0, False, False)


@pytest.mark.gpu
def test_memory_is_pinned_for_a_gpu() -> None:
    data = make()
    data.trainer = Trainer(accelerator="gpu", devices=1, logger=False, enable_checkpointing=False)
    assert data.train_dataloader().pin_memory


@pytest.mark.parametrize("stage", ["train", "val", "test", "predict"])
def test_a_data_set_that_setup_forgot_is_named(stage: str) -> None:
    with pytest.raises(RuntimeError, match=rf"Unset.setup\(\) did not set self.{stage}_set"):
        getattr(Unset(), f"{stage}_dataloader")()


def test_it_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        RecipeDataModule()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "^batch_size .*, got 0"),
        ({"batch_size": 2.5}, ValueError, r"^batch_size .*, got 2\.5"),
        ({"batch_size": "8"}, ValueError, "^batch_size .*, got '8'"),
        ({"eval_batch_size": 0}, ValueError, "^eval_batch_size .*, got 0"),
        ({"num_workers": -1}, ValueError, "num_workers .*, got -1"),
        ({"num_workers": 1.5}, ValueError, r"num_workers .*, got 1\.5"),
        ({"num_workers": "many"}, ValueError, "num_workers .*, got 'many'"),
        ({"seed": -1}, ValueError, "seed .*, got -1"),
        ({"seed": 1.5}, TypeError, r"seed .*, got 1\.5"),
        ({"seed": True}, TypeError, "seed .*, got True"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Numbers(**arguments)
