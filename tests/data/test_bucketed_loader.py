"""Batches of similar length, through the loader and real Trainer runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lightning_recipes import LengthBuckets, PadCollate, ResumableDataLoader, ResumeCheckpoint
from tests.data.test_trainer_options import Model, Seen, make_trainer
from tests.ranks import run_trainer_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:You requested to overfit but enabled"),
]

LENGTHS = np.random.default_rng(0).integers(1, 9, 29)


class Ragged(Dataset[tuple[Tensor, int]]):
    """Noise of different lengths, and the index."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(int(LENGTHS[index]), 3), index


class RaggedModel(Model):
    """Takes the padded values for features."""

    def step(self, batch: Any) -> Any:
        padded, indices = batch
        return super().step((padded.values, indices))


def make(rank: int | None = None, **options: Any) -> ResumableDataLoader:
    buckets = LengthBuckets(LENGTHS, **{"max_tokens": 16, "window": 2, **options.pop("plan", {})})
    world = {} if rank is None else {"rank": rank, "world_size": 2}
    options = {"batch_size": 3, "shuffle": True, **world, **options}
    return ResumableDataLoader(Ragged(), buckets=buckets, collate_fn=PadCollate(), **options)


def indices(loader: ResumableDataLoader) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


@pytest.mark.parametrize("options", [{"plan": {"max_tokens": None}}, {"drop_last": True}, {}])
def test_two_ranks_see_every_sample_once_in_as_many_batches(options: dict[str, Any]) -> None:
    for epoch in range(2):
        loaders = [make(rank, **options) for rank in (0, 1)]
        real, num_batches = [], set()
        for loader in loaders:
            loader.set_epoch(epoch)
            fillers = [loader.is_filler(k) for k in range(len(loader))]
            batches = indices(loader)
            num_batches |= {len(batches), len(loader)}
            num_samples: int = len(loader.sampler)  # type: ignore[arg-type]
            assert num_samples == sum(map(len, batches))
            for batch, is_filler in zip(batches, fillers, strict=True):
                real += [] if is_filler else batch
        assert len(num_batches) == 1
        assert sorted(real) == list(range(len(LENGTHS)))


def test_a_rank_keeps_to_its_budget() -> None:
    for batch, _ in make(0):
        assert batch.values.shape[0] * batch.values.shape[1] <= 16


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_position_can_be_resumed(num_workers: int) -> None:
    whole = make(num_workers=num_workers)
    expected = list(whole)
    positions = range(len(whole)) if num_workers == 0 else [3]
    for position in positions:
        loader = make(num_workers=num_workers)
        loader.load_state_dict({**loader.state_dict(), "batch": position})
        rest = list(loader)
        assert len(rest) == len(expected) - position
        for found, wanted in zip(rest, expected[position:], strict=True):
            assert torch.equal(found[0].values, wanted[0].values)
            assert torch.equal(found[1], wanted[1])


def test_persistent_workers_go_on_in_the_next_epoch() -> None:
    persistent, fresh = make(num_workers=1, persistent_workers=True), make()
    for _ in range(3):
        epoch = indices(persistent)
        assert len(epoch) == len(persistent)
        assert epoch == indices(fresh)


def test_a_position_in_another_plan_is_refused() -> None:
    state = make().state_dict()
    with pytest.raises(ValueError, match="buckets="):
        make(plan={"window": 3}).load_state_dict(state)
    one_rank = ResumableDataLoader(Ragged(), 3, shuffle=True, collate_fn=PadCollate())
    with pytest.raises(ValueError, match="buckets="):
        one_rank.load_state_dict(state)
    with pytest.raises(ValueError, match="global_batch_size"):
        make(rank=0).load_state_dict(state, nearest=True)


def test_lengths_of_other_data_are_refused() -> None:
    with pytest.raises(ValueError, match="got 29 lengths for 10 samples"):
        ResumableDataLoader(Subset(Ragged(), range(10)), buckets=LengthBuckets(LENGTHS))


def test_prediction_keeps_the_order_of_the_data_set() -> None:
    outputs: Any = make_trainer().predict(RaggedModel(), make(shuffle=False))
    assert torch.cat(outputs).tolist() == list(range(len(LENGTHS)))
    assert {len(batch) for batch in outputs[:-1]} == {3}


def test_overfitting_repeats_the_longest_batches_in_order() -> None:
    seen = Seen()
    trainer = make_trainer(max_epochs=2, overfit_batches=2, callbacks=[seen], limit_val_batches=0)
    trainer.fit(RaggedModel(), make())
    order = LengthBuckets(LENGTHS, max_tokens=16, window=2).order(batch_size=3, world_size=1)
    assert seen.train == [[order.batch(0, k).tolist() for k in range(2)]] * 2


class SeenAlso(Seen):
    """Also the batches of a run that begins in the middle of an epoch."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train = [[]] if trainer.fit_loop.restarted_mid_epoch else []


def fit(root: Path, ckpt_path: str | None = None, **options: Any) -> Seen:
    seen = SeenAlso()
    keeper = ResumeCheckpoint(every_n_steps=1, keep_last=None)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(root),
        callbacks=[keeper, seen],
        **options,
    )
    trainer.fit(RaggedModel(), make(), ckpt_path=ckpt_path)
    return seen


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    whole = fit(tmp_path)
    num_batches = len(whole.train[0])
    path = tmp_path / "resume" / f"step={num_batches + 2:09d}.ckpt"
    assert fit(tmp_path / "again", str(path)).train[-1] == whole.train[1][2:]


def _fit_on_rank(root: str) -> dict[bool, list[list[list[int]]]]:
    return {
        use: fit(Path(root, str(use)), devices=2, strategy="ddp", use_distributed_sampler=use).train
        for use in (True, False)
    }


def test_real_ranks_share_the_batches_of_a_plan(tmp_path: Path) -> None:
    one, two = run_trainer_ranks(_fit_on_rank, str(tmp_path))
    for use in (True, False):
        for epoch in range(2):
            loaders = [make(rank) for rank in (0, 1)]
            for loader in loaders:
                loader.set_epoch(epoch)
            assert [one[use][epoch], two[use][epoch]] == [indices(loader) for loader in loaders]
