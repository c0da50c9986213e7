"""Every callback says the same things in the same order on all ranks."""

import ast
import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

import lightning_recipes
from lightning_recipes import (
    GradientNormMonitor,
    NaNDetector,
    RankCheck,
    RecipeModule,
    ResumeCheckpoint,
    Step,
    WarmupCosineLR,
    cross_entropy_step,
)
from tests.callbacks.test_all import CALLBACKS
from tests.project import PointsDataModule, make_module
from tests.ranks import run_trainer_ranks

PACKAGE = Path(lightning_recipes.__file__).parent

# Those with options that say the most; a callback that is not here is made without any.
OPTIONS: dict[type[Callback], dict[str, Any]] = {
    GradientNormMonitor: {"by_module": 1, "update_ratio": True},
    NaNDetector: {"policy": "skip"},
    RankCheck: {"hang_timeout_s": 60.0},
    ResumeCheckpoint: {"every_n_steps": 1, "keep_last": 1, "max_wall_time": 3600.0},
    WarmupCosineLR: {"warmup": 2},
}
COLLECTIVES = (
    *("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "gather"),
    *("broadcast_object_list", "new_group", "reduce", "reduce_scatter", "scatter", "send", "recv"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "destroy_process_group"),
)
# Where Lightning asks the ranks for something to broadcast.
ASKING = {"log_dir"}


class Spoken:
    """Notes each collective, with the size of what is said, while it is installed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._depth = 0
        self._originals = {n: getattr(dist, n) for n in COLLECTIVES if hasattr(dist, n)}

    def __enter__(self) -> "Spoken":
        for name, function in self._originals.items():
            setattr(dist, name, self._noting(name, function))
        return self

    def __exit__(self, *args: object) -> None:
        for name, function in self._originals.items():
            setattr(dist, name, function)

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def note(*args: Any, **kwargs: Any) -> Any:
            if name not in ("new_group", "destroy_process_group"):
                shapes = [tuple(arg.shape) for arg in args if isinstance(arg, Tensor)]
                self.calls.append(f"{name}{shapes}")
            else:
                self.calls.append(name)
            return function(*args, **kwargs)

        return note


class OnRank0(CSVLogger):
    """Lightning makes a logger write on rank 0 only."""


def runs_of_a_rank(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in [None, *CALLBACKS]:
        name = "none" if kind is None else kind.__name__
        callbacks: list[Callback] = [] if kind is None else [kind(**OPTIONS.get(kind, {}))]
        callbacks.append(ModelCheckpoint(root / name, monitor="val/loss", save_last=True))
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            default_root_dir=str(root / name),
            logger=OnRank0(root / name),
            callbacks=callbacks,
            max_epochs=2,
            limit_train_batches=3,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with Spoken() as spoken, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(make_module(), PointsDataModule(batch_size=2, seed=5))
        hooks = [] if kind is None else [n for n in vars(kind) if n in vars(Callback)]
        found[name] = (spoken.calls, hooks, trainer.global_step)
    found["streams"] = streams(root)
    return found


class Drawing(RecipeModule):
    """Notes its weights at the start, and what is drawn: by dropout, and after the transfer."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_module().network
        self.drawn: list[float] = []

    def on_train_start(self) -> None:
        self.first = [p.detach().clone() for p in self.parameters()]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer.training:
            self.drawn.append(torch.rand(()).item())
        return batch

    def step(self, batch: Any) -> Step:
        points, target = batch
        if self.training:
            self.drawn.append(torch.dropout(torch.ones(64), 0.5, True).nonzero().sum().item())
        return cross_entropy_step(self.network(points), target)


def streams(root: Path) -> tuple[list[Tensor], list[float]]:
    module = Drawing()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        default_root_dir=str(root / "streams"),
        logger=False,
        enable_checkpointing=False,
        callbacks=[ResumeCheckpoint()],
        max_steps=4,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, PointsDataModule(batch_size=2))
    return module.first, module.drawn


def test_the_ranks_say_the_same_in_the_same_order(tmp_path: Path) -> None:
    one, two = run_trainer_ranks(runs_of_a_rank, tmp_path)
    (weights, drawn), (others, drawn_there) = one.pop("streams"), two.pop("streams")
    for name, (calls, hooks, step) in one.items():
        assert calls == two[name][0], name
        assert step == two[name][2] == 6
        assert hooks or name == "none"
    # what shows that they are counted at all
    assert len(one["ResumeCheckpoint"][0]) > len(one["none"][0])
    assert len(one["RankCheck"][0]) == len(one["none"][0]) + 2
    # These say nothing of their own. (WarmupCosineLR has Lightning make the loader earlier.)
    for name in ("GradientNormMonitor", "LossScaleMonitor"):
        assert one[name][0] == one["none"][0], name

    assert all(map(torch.equal, weights, others))
    assert len(drawn) == len(drawn_there) >= 8
    assert not set(drawn[::2]) & set(drawn_there[::2])
    assert not set(drawn[1::2]) & set(drawn_there[1::2])


def rank_conditions(source: str) -> list[str]:
    """Return what is said under a condition on the rank: collectives, and what broadcasts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.If | ast.IfExp | ast.While | ast.BoolOp):
            continue
        test = node.values[0] if isinstance(node, ast.BoolOp) else node.test
        names = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
        if not names & {"is_global_zero", "global_rank", "local_rank", "node_rank"}:
            continue
        parts = node.values[1:] if isinstance(node, ast.BoolOp) else ast.iter_child_nodes(node)
        for part in parts:
            if part is test:
                continue
            for inner in ast.walk(part):
                name = getattr(inner, "attr", None) or getattr(inner, "id", None)
                if name in {*ASKING, *COLLECTIVES, "save_checkpoint"} and not _is_name(inner):
                    found.append(f"line {getattr(inner, 'lineno', 0)}: {name}")
    return found


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize("room", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_said_under_a_condition_on_the_rank(room: Path) -> None:
    assert not rank_conditions(room.read_text())


def test_that_would_be_found() -> None:
    for bad in (
        "if trainer.is_global_zero:\n    folder = trainer.log_dir",
        "x = trainer.log_dir if trainer.global_rank == 0 else None",
        "x = trainer.is_global_zero and trainer.log_dir",
        "if not self.trainer.is_global_zero:\n    pass\nelse:\n    gather(1)",
    ):
        assert rank_conditions(bad), bad
    good = "folder = trainer.log_dir\nif trainer.is_global_zero:\n    print(folder)"
    assert not rank_conditions(good)


@pytest.mark.parametrize("callback", CALLBACKS, ids=lambda callback: callback.__name__)
def test_nobody_is_asked_while_an_exception_is_handled(callback: type[Callback]) -> None:
    source = inspect.getsource(callback.on_exception)
    assert "gather(" not in source
    assert "broadcast(" not in source
    assert "barrier(" not in source
