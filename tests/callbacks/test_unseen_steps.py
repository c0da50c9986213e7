import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from lightning_recipes import NaNDetector
from lightning_recipes.callbacks.unseen_steps import UnseenSteps
from tests.callbacks.faulty import (
    BadBackward,
    Net,
    error_of,
    fit,
    loader,
    make_batches,
    make_net,
    make_trainer,
)
from tests.test_performance import SYNCHRONISING, Operators

NAN, INF = math.nan, math.inf


def test_the_first_bad_step_is_kept() -> None:
    unseen = UnseenSteps()
    assert unseen.first_bad() is None
    large = 2**24 + 1  # a float32 cannot hold it
    noted = [
        float(unseen.note(torch.tensor(norm), large + i))
        for i, norm in enumerate([1.0, 2.0, INF, NAN, 3.0])
    ]
    assert noted[:2] == [1.0, 2.0]
    assert all(map(math.isnan, noted[2:]))
    assert unseen.first_bad() == large + 2
    unseen.forget()
    assert unseen.first_bad() is None
    assert float(unseen.note(torch.tensor(4.0), 0)) == 4.0


def bad_at(number: int) -> Callable[[Net, Any, int, Tensor], Tensor]:
    def hook(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
        return BadBackward.apply(loss) if batch_idx == number else loss  # type: ignore[no-untyped-call]

    return hook


@pytest.mark.parametrize(
    ("bad", "last", "is_late"), [(0, 8, True), (2, 8, False), (4, 8, True), (6, 8, True)]
)
def test_is_named_at_the_next_look_or_the_end(
    bad: int, last: int, is_late: bool, tmp_path: Path
) -> None:
    # the looks are at the steps 2 and 5, and at the end of the epoch of 8
    detector = NaNDetector(every_n_steps=3)
    error = error_of(make_trainer(tmp_path, detector), make_net(bad_at(bad)), make_batches(last))
    assert (error.step, error.epoch) == (bad, 0)
    assert (f"at optimizer step {bad}, which lies between two looks" in str(error)) == is_late
    assert (error.origins == []) == is_late


def test_is_named_before_a_checkpoint(tmp_path: Path) -> None:
    detector = NaNDetector(every_n_steps=5)
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=2, filename="{step}", save_top_k=-1)
    trainer = make_trainer(tmp_path, detector, keep, enable_checkpointing=True)
    error = error_of(trainer, make_net(bad_at(2)), make_batches(8))
    assert error.step == 2
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["step=2.ckpt"]
    assert f"Newest checkpoint: {tmp_path / 'step=2.ckpt'}" in str(error)


def test_warns_once(tmp_path: Path) -> None:
    detector = NaNDetector(policy="warn", every_n_steps=2)
    with pytest.warns(UserWarning, match="were not finite at optimizer step 2,") as caught:
        fit(make_trainer(tmp_path, detector), make_net(bad_at(2)), make_batches(8))
    assert sum("not finite" in str(warning.message) for warning in caught) == 1


class Plain(Net):
    """Without the metrics of classes, which look at values on the host."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.head(self.body(batch["x"])).square().mean()
        self.mean.update(loss.detach())
        self.log("loss", loss, on_epoch=True, batch_size=4)
        return loss


def synchronisations(root: Path, detector: list[NaNDetector], num_batches: int) -> int:
    module = Plain(optimizer=partial(torch.optim.SGD, lr=0.01))
    trainer = make_trainer(root, *detector, logger=False)
    batches = list(loader(make_batches(num_batches)))
    with Operators() as operators:
        fit(trainer, module, batches)
    assert operators.calls["addmm"] > num_batches
    return sum(operators.calls[name] for name in SYNCHRONISING)


def test_one_number_is_fetched_at_a_look_and_none_in_between(tmp_path: Path) -> None:
    count = partial(synchronisations, tmp_path)
    plain = [count([], num_batches) for num_batches in (4, 9)]
    often = [count([NaNDetector()], num_batches) for num_batches in (4, 9)]
    seldom = [count([NaNDetector(every_n_steps=100)], num_batches) for num_batches in (4, 9)]
    # one more for each further step
    assert often[1] - often[0] == plain[1] - plain[0] + 5
    assert seldom[1] - seldom[0] == plain[1] - plain[0]
    skip = [count([NaNDetector(policy="skip")], num_batches) for num_batches in (4, 9)]
    assert skip[1] - skip[0] == plain[1] - plain[0] + 5
