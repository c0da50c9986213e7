from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_recipes import NaNDetector, NonFiniteError, ResumeCheckpoint
from tests.callbacks.faulty import (
    INF,
    NAN,
    Net,
    error_of,
    fit,
    make_batches,
    make_net,
    make_trainer,
)


class Breaking(torch.optim.SGD):
    """Makes a weight NaN in its third step, whatever the gradients."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.num_steps = getattr(self, "num_steps", 0) + 1
        if self.num_steps == 3:
            with torch.no_grad():
                self.param_groups[0]["params"][0][0, 0] = NAN
        return loss


def breaking_net() -> Net:
    return make_net(optimizer=partial(Breaking, lr=0.1))


@pytest.mark.parametrize("policy", ["raise", "skip", "warn"])
@pytest.mark.parametrize("save_weights_only", [False, True])
def test_no_policy_lets_them_be_written(
    save_weights_only: bool, policy: Any, tmp_path: Path
) -> None:
    keep = ModelCheckpoint(
        tmp_path / "kept",
        filename="{step}",
        every_n_train_steps=1,
        save_last=True,
        save_weights_only=save_weights_only,
    )
    trainer = make_trainer(
        tmp_path, NaNDetector(policy=policy), keep, enable_checkpointing=True, max_steps=3
    )
    error = error_of(trainer, breaking_net(), make_batches(6))
    good = tmp_path / "kept" / "last.ckpt"
    assert error.step == 3
    assert "weights are not finite (parameters body.0.weight: 1 nan of 12" in str(error)
    assert f"Newest file of this run: {good}" in str(error)
    for path in (good, good.with_name("step=2.ckpt")):
        kept = torch.load(path, weights_only=True)["state_dict"]
        assert all(value.isfinite().all() for value in kept.values())
    assert len(list(good.parent.iterdir())) == 2


def test_the_file_of_a_run_stays_good(tmp_path: Path) -> None:
    resume = ResumeCheckpoint(every_n_steps=1, keep_last=1)
    trainer = make_trainer(tmp_path, resume, NaNDetector(every_n_steps=10))
    error = error_of(trainer, breaking_net(), make_batches(6))
    (path,) = (tmp_path / "resume").glob("*.ckpt")
    assert path.name == "step=000000002.ckpt"
    assert f"Newest file of this run: {path}" in str(error)
    assert all(v.isfinite().all() for v in torch.load(path)["state_dict"].values())


def test_weights_whose_squares_overflow_are_finite(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ResumeCheckpoint(every_n_steps=1), max_steps=1)
    net = make_net()
    net.register_parameter("unused", torch.nn.Parameter(torch.tensor([1e30])))
    fit(trainer, net, make_batches(2))
    (path,) = (tmp_path / "resume").glob("*.ckpt")
    assert float(torch.load(path)["state_dict"]["unused"].square()) == INF


@pytest.mark.parametrize(("value", "is_refused"), [(NAN, True), (-INF, False)])
def test_a_buffer_may_be_a_mask_and_no_nan(value: float, is_refused: bool, tmp_path: Path) -> None:
    net, trainer = make_net(), make_trainer(tmp_path, NaNDetector(), max_steps=1)
    net.register_buffer("mask", torch.tensor([0.0, 1.0]))
    saved = []

    def save(batch_idx: int) -> None:
        mask: Any = net.mask
        mask[0] = value
        if is_refused:
            with pytest.raises(NonFiniteError, match=r"buffers mask: 1 nan of 2.*none yet"):
                trainer.save_checkpoint(tmp_path / "by-hand.ckpt")
        else:
            trainer.save_checkpoint(tmp_path / "by-hand.ckpt")
        saved.append(batch_idx)

    net.on_train_batch_end = lambda outputs, batch, batch_idx: save(batch_idx)  # type: ignore[method-assign]
    fit(trainer, net, make_batches(2))
    assert saved == [0]
    assert (tmp_path / "by-hand.ckpt").exists() != is_refused


class Counting(Callback):
    """Puts itself before ``save_checkpoint`` as well, and stays."""

    num_saved = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        save = trainer.save_checkpoint

        def count(*args: Any, **kwargs: Any) -> None:
            save(*args, **kwargs)
            self.num_saved += 1

        trainer.save_checkpoint = count  # type: ignore[method-assign]


@pytest.mark.parametrize("others", [[], [Counting()]], ids=["alone", "with another"])
def test_stands_there_no_longer_than_the_training(others: list[Counting], tmp_path: Path) -> None:
    trainer, net = make_trainer(tmp_path, NaNDetector(), *others), make_net()
    error_of(trainer, net, make_batches(2, [1]))  # after which there is no teardown
    fit(trainer, net, make_batches(2))
    with torch.no_grad():
        net.last.bias.fill_(NAN)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    assert (tmp_path / "after.ckpt").exists()
    assert all(other.num_saved for other in others)


def test_an_error_of_another_kind_waits_for_nobody(tmp_path: Path) -> None:
    class Broken(Net):
        def on_train_batch_end(self, *args: Any) -> None:
            raise KeyError("of the module")

    keep = ModelCheckpoint(tmp_path / "kept", filename="{step}", save_on_exception=True)
    trainer = make_trainer(tmp_path, NaNDetector(), keep, enable_checkpointing=True)
    with pytest.raises(KeyError, match="of the module"):
        fit(trainer, Broken(), make_batches(2))
    assert len(list((tmp_path / "kept").iterdir())) == 1
