"""Two ranks find out together, and stay alike."""

import os
import subprocess
import sys
import textwrap
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_recipes import NaNDetector, NonFiniteError
from tests.callbacks.faulty import (
    NAN,
    SGD,
    Net,
    float16,
    make_batches,
    make_net,
    make_trainer,
)
from tests.callbacks.matrix import first_difference
from tests.commands import ROOT
from tests.ranks import run_trainer_ranks

ADAMW = partial(torch.optim.AdamW, lr=0.05)
TWO: dict[str, Any] = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
KEPT = ("loss_epoch", "largest", "total", "mean", "auroc", "accuracy", "precision", "recall")


class Everywhere(Net):
    """Its training step has a collective of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        gathered: Any = self.all_gather(batch["x"].nan_to_num().mean())
        return loss + 0.0 * gathered.sum()


def own_batches(rank: int, num_batches: int, bad: list[int]) -> list[dict[str, Tensor]]:
    """Return other batches on each rank, the bad ones on rank 1; all of them have a mask."""
    batches = make_batches(num_batches, bad if rank == 1 else (), seed=rank)
    mask = torch.tensor([0.0, -torch.inf])
    return [{**batch, "mask": mask} for batch in batches]


def each_its_own(batches: list[Any]) -> Any:
    """Return a loader that does not share batches out among the ranks."""
    made: Any = batches
    return DataLoader(made, batch_size=None)


def ways_of_a_rank(root: Path) -> dict[str, Any]:
    """Run every policy, and return what each left."""
    found: dict[str, Any] = {}
    rank = int(os.environ["RANK"])

    def train(detector: NaNDetector, batches: list[Any], **kwargs: Any) -> tuple[Any, Net]:
        seed_everything(5, verbose=False)
        net = Everywhere(kwargs.pop("hook", None), kwargs.pop("optimizer", SGD))
        trainer = make_trainer(root / "logs", detector, **TWO, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trainer.fit(net, each_its_own(batches))
            except NonFiniteError as error:
                return error, net
        means = {name: trainer.callback_metrics[name] for name in KEPT}
        state = trainer.optimizers[0].state_dict()["state"]
        return {"module": net.state_dict(), "means": means, "optimizer": state}, net

    error, net = train(NaNDetector(capsule_dir=str(root / "kept")), own_batches(rank, 4, [2]))
    found["raise"] = error
    found["raised weights"] = net.state_dict()
    # rank 1 sees in its second micro-batch what nobody sees in a gradient
    error, _ = train(
        NaNDetector(),
        own_batches(rank, 4, []),
        hook=constant_on_rank_1,
        accumulate_grad_batches=2,
    )
    found["constant"] = error

    # beside which rank 0 sees an overflow, as any NaN of another rank looks under a scaler
    found["scaler"], _ = train(NaNDetector(), own_batches(rank, 4, [2]), **float16(2.0**8))

    for name, optimizer, accumulate, bad, dropped in [
        ("sgd", SGD, 1, [0, 3], [0, 3]),
        ("window", ADAMW, 4, [4], [4, 5, 6, 7]),
    ]:
        options: dict[str, Any] = {"optimizer": optimizer, "accumulate_grad_batches": accumulate}
        detector = NaNDetector(policy="skip")
        skipped, _ = train(detector, own_batches(rank, 9, bad), **options)
        good = [b for i, b in enumerate(own_batches(rank, 9, bad)) if i not in dropped]
        expected, _ = train(NaNDetector(), good, **options)
        found[name] = (skipped, expected, detector.skipped_steps)

    seed_everything(5, verbose=False)
    keep = ModelCheckpoint(root / "files", every_n_train_steps=1, save_top_k=-1, filename="{step}")
    net = make_net(optimizer=partial(Breaking, lr=0.1))
    trainer = make_trainer(root, NaNDetector(), keep, enable_checkpointing=True, **TWO)
    try:
        trainer.fit(net, each_its_own(own_batches(rank, 4, [])))
    except NonFiniteError as error:
        found["guard"] = error
    return found


def constant_on_rank_1(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
    return loss + NAN if batch_idx == 3 and net.global_rank == 1 else loss


class Breaking(torch.optim.SGD):
    """Makes a weight NaN in its second step, on rank 1 alone."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.num_steps = getattr(self, "num_steps", 0) + 1
        if self.num_steps == 2 and torch.distributed.get_rank() == 1:
            self.param_groups[0]["params"][0].data[0, 0] = NAN
        return loss


@pytest.mark.timeout(180)
def test_two_ranks_find_out_together(tmp_path: Path) -> None:
    ranks = run_trainer_ranks(ways_of_a_rank, tmp_path)
    for found in ranks:
        error = found["raise"]
        assert (error.step, error.ranks) == (2, [1])
        assert f"{error.first}".startswith("batch field ['x']: 1 nan of 12")
        assert "rank 1, batch 2: began with batch field ['x']" in str(error)
        assert all(value.isfinite().all() for value in found["raised weights"].values())
        assert error.origins[0].capsule == str(tmp_path / "kept" / "step=000000002-rank=1.pt")

        error = found["constant"]
        assert (error.step, error.ranks) == (1, [1])
        assert (error.origins[0].batch_idx, error.origins[0].micro_batch) == (3, 1)
        assert f"{error.first}".startswith("loss: 1 nan of 1")

        error = found["scaler"]
        assert (error.step, error.ranks) == (2, [1])

        for name, num_skipped in (("sgd", 2), ("window", 1)):
            skipped, expected, count = found[name]
            torch.testing.assert_close(skipped, expected, rtol=1e-7, atol=1e-7)
            assert count == num_skipped

        error = found["guard"]
        assert error.step == 2
        assert f"Newest file of this run: {tmp_path / 'files' / 'step=1.ckpt'}" in str(error)
    for name in ("sgd", "window"):
        weights = [
            {key: value for key, value in found[name][0]["module"].items() if "body.1" not in key}
            for found in ranks
        ]
        for states in weights:
            del states["center"]  # each rank's own, as the statistics of a normalisation are
        assert first_difference(*weights) is None
    assert [path.name for path in (tmp_path / "files").glob("*.ckpt")] == ["step=1.ckpt"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step=000000002-rank=1.pt"]


SCRIPT = """
    from tests.callbacks.faulty import fit, make_net, make_trainer
    from tests.callbacks.test_nan_ranks import TWO, constant_on_rank_1, own_batches
    from lightning_recipes import NaNDetector

    trainer = make_trainer(".", NaNDetector(), **TWO)
    fit(trainer, make_net(constant_on_rank_1), own_batches(0, 9, []))
"""


@pytest.mark.timeout(120)
def test_a_script_ends_with_the_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    start = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0
    assert time.monotonic() - start < 60
    # each process has its own traceback
    assert result.stderr.count("rank 1, batch 3: began with loss: 1 nan of 1") == 2
