import dataclasses
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.utils.data import DataLoader

from lightning_recipes import (
    RankCheck,
    RecipeModule,
    ResumableDataLoader,
    ResumeCheckpoint,
    Step,
    cross_entropy_step,
)
from lightning_recipes.callbacks.rank_facts import RankFacts, differences, node_lines
from tests.project import NoisyPoints, PointsDataModule
from tests.ranks import run_trainer_ranks


class Net(RecipeModule):
    def __init__(self, width: int = 4, depth: float = 1.0, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        seed_everything(3, verbose=False)
        self.network = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 2))
        self.sleep_s = sleep_s

    def step(self, batch: Any) -> Step:
        time.sleep(self.sleep_s)
        points, target = batch
        return cross_entropy_step(self.network(points), target)


class Respoil(Callback):
    """Changes a weight of rank 1 after DDP made all of them alike."""

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.global_rank == 1:
            pl_module.network[1].bias.data += 1


class Late(PointsDataModule):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        time.sleep(2.0 * int(os.environ["RANK"]))


class Told:
    """What was written to stderr inside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Told":
        self.old, sys.stderr = sys.stderr, self.path.open("w+")
        return self

    def __exit__(self, *args: object) -> None:
        sys.stderr.close()
        sys.stderr = self.old

    def text(self) -> str:
        return self.path.read_text()


def fit(
    root: Path,
    net: Any,
    data: Any,
    *callbacks: Callback,
    check: RankCheck | None = None,
    **kwargs: Any,
) -> str:
    """Return the error's text, or that it came to its end."""
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 1,
    }
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        default_root_dir=str(root),
        callbacks=[*callbacks, check or RankCheck(timeout_s=60)],
        **{**quiet, "strategy": "ddp", "devices": 2, **kwargs},
    )
    try:
        trainer.fit(net, data)
    except MisconfigurationException as error:
        return str(error)
    return f"{trainer.global_step} steps"


def cases_of_a_rank(root: Path) -> dict[str, str]:
    rank = int(os.environ["RANK"])
    data = PointsDataModule(batch_size=2)
    points = NoisyPoints(24, noise=0.0)
    own = DataLoader(torch.utils.data.Subset(points, range(8 + 4 * rank)), batch_size=4)
    lying = ResumableDataLoader(points, 4, rank=0, world_size=2)
    shorter = ResumableDataLoader(
        torch.utils.data.Subset(points, range(24 - rank)), 4, drop_last=True
    )
    found = {
        "good": fit(root, Net(), data),
        "hyper-parameter": fit(root, Net(depth=1.0 + rank), data),
        "ignored": fit(
            root, Net(depth=1.0 + rank), data, check=RankCheck(ignore=["module.hparams.depth"])
        ),
        "shape": fit(root, Net(width=4 + rank), data, check=RankCheck(ignore=["module.hparams"])),
        "epochs": fit(root, Net(), data, accumulate_grad_batches=1 + rank),
        "batches": fit(root, Net(), own, use_distributed_sampler=False, limit_val_batches=0),
        "overlap": fit(root, Net(), lying),
        "length": fit(root, Net(), shorter),
        "weights": fit(root, Net(), data, Respoil()),
    }
    with Told(root / f"late{rank}") as told:
        found["late"] = fit(root, Net(), Late(batch_size=2), check=RankCheck(timeout_s=1.0))
        found["late told"] = told.text()
    with Told(root / f"hang{rank}") as told:
        net = Net(sleep_s=1.0 * rank)
        check = RankCheck(hang_timeout_s=0.6, ignore=["module.hparams.sleep_s"])
        found["hang"] = fit(root, net, data, check=check, limit_train_batches=2)
        found["hang told"] = told.text()
    time.sleep(0.2)
    watches = [thread for thread in threading.enumerate() if thread.name == "StackWatch"]
    found["watches"] = str(len(watches))
    return found


def test_ranks_that_differ_are_refused_on_all_of_them(tmp_path: Path) -> None:
    ranks = run_trainer_ranks(cases_of_a_rank, tmp_path)
    for rank, found in enumerate(ranks):
        assert found["good"] == found["ignored"] == "6 steps"
        assert "module.hparams.depth: 1.0 on rank 0, 2.0 on rank 1" in found["hyper-parameter"]
        assert "trainer" not in found["hyper-parameter"]
        assert (
            "model network.0.weight: '(4, 8) torch.float32' on rank 0, '(5, 8) tor"
            in found["shape"]
        )
        assert "trainer.accumulate_grad_batches: 1 on rank 0, 2 on rank 1" in found["epochs"]
        assert (
            "train batches of an epoch: 2 on rank 0, 3 on rank 1 (a rank with" in found["batches"]
        )
        assert "ranks 0 and 1 have 4 samples in common" in found["overlap"]
        assert "length of train data set 0: 24 on rank 0, 23 on rank 1" in found["length"]
        assert "weights of network.1.bias: " in found["weights"]
        assert "network.1.weight" not in found["weights"]
        assert found["late"] == "6 steps"
        waited = f"Rank {rank} of 2: RankCheck has waited for the other ranks for 1 s"
        assert (waited in found["late told"]) == (rank == 0)
        assert ("gather" in found["late told"]) == (rank == 0)
        assert found["hang"] == "2 steps"
        assert found["watches"] == "0"
        # one waits in the reduction of the gradients, the other where it sleeps
        assert f"Rank {rank} of 2: no batch has ended for 0.6 s" in found["hang told"]
    assert "in step" in ranks[1]["hang told"]


class Slices(Net):
    """Its layers are shared by all ranks."""

    def configure_model(self) -> None:
        pass


def together_on_a_rank(root: Path) -> list[Any]:
    points = NoisyPoints(24, noise=0.0)
    told = [
        fit(root, Slices(), data, ResumeCheckpoint(), strategy=ModelParallelStrategy())
        for data in (PointsDataModule(batch_size=4), ResumableDataLoader(points, 4))
    ]
    return [*told, torch.initial_seed()]


def test_ranks_that_share_a_copy_of_the_model_share_the_data(tmp_path: Path) -> None:
    ranks = run_trainer_ranks(together_on_a_rank, tmp_path)
    for good, bad, _ in ranks:
        assert good == "6 steps"
        assert "ranks 0 and 1 share a copy of the model and have different samples" in bad
    # or they would not drop the same activations
    assert ranks[0][2] == ranks[1][2] != 3


FACTS = RankFacts(host="a", device="cuda:0", common={"x": 1})


def test_every_kind_of_difference_is_told_with_the_values_by_rank() -> None:
    def with_(**changes: Any) -> RankFacts:
        return dataclasses.replace(FACTS, **changes)

    assert not differences([FACTS, FACTS])
    assert not differences([FACTS, with_(host="b", device="cuda:1")])
    four = [FACTS, FACTS, FACTS, with_(common={"x": 2, "y": 0})]
    assert differences(four) == [
        "x: 1 on ranks 0 to 2, 2 on rank 3",
        "y: '(none)' on ranks 0 to 2, 0 on rank 3",
    ]
    assert differences(four, ignore=["y", "xx"]) == ["x: 1 on ranks 0 to 2, 2 on rank 3"]
    apart = [with_(part=part, first_batches=[[part, part + 2]]) for part in (0, 1)]
    assert not differences(apart)
    (told,) = differences([apart[0], with_(part=1, first_batches=[[2, 3]])])
    assert "ranks 0 and 1 have 1 samples in common, e.g. 2" in told
    assert not differences([apart[0], apart[0]])  # one part: the same batch
    (told,) = differences([apart[0], dataclasses.replace(apart[1], part=0)])
    assert "share a copy" in told
    # a rank left without a sample repeats one, which is no overlap
    assert not differences([apart[0], with_(part=1, first_batches=[[]])])


def test_a_line_for_each_machine() -> None:
    ranks = [
        RankFacts(host=host, device=f"cuda:{i}", common={}) for host in ("a", "b") for i in (0, 1)
    ]
    assert node_lines(ranks) == ["a: ranks 0, 1; cuda:0, cuda:1", "b: ranks 2, 3; cuda:0, cuda:1"]


def test_a_single_process_has_nothing_to_compare(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": "auto", "devices": 1}
    check = RankCheck(hang_timeout_s=0.01)
    assert fit(tmp_path, Net(), PointsDataModule(batch_size=4), check=check, **options) == "6 steps"


def test_processes_that_do_not_know_of_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun and "fabric run" start them for a Trainer of one device."""
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    told = fit(tmp_path, Net(), PointsDataModule(), strategy="auto", devices=1)
    assert "started 2 processes, and this Trainer knows of no other" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s .* > 0, got 0"),
        ({"hang_timeout_s": -1}, "hang_timeout_s .* got -1"),
        ({"ignore": "module"}, "ignore is a list of names, got the text 'module'"),
    ],
)
def test_bad_arguments_are_named_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RankCheck(**options)
