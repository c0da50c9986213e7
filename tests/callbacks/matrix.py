"""A plain Lightning project with one choice of everything that a resume has to bring back."""

import csv
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.data import Dataset
from torchmetrics import MeanMetric

from lightning_recipes import ResumableDataLoader, ResumeCheckpoint, WarmupCosineLR

NUM_BATCHES = 6
FLOAT16 = "16-mixed on the CPU"

CHOICES: dict[str, list[Any]] = {
    "length": [
        {"max_epochs": 3},
        {"max_epochs": -1, "max_steps": 11},
        {"max_epochs": -1, "max_steps": 12},
        {"max_epochs": 4, "limit_train_batches": 4},
    ],
    "validation": [
        {"check_val_every_n_epoch": 1},
        {"check_val_every_n_epoch": 2},
        {"val_check_interval": 0.5},
        {"val_check_interval": 2},
        {"val_check_interval": 4, "check_val_every_n_epoch": None},
        {"limit_val_batches": 0},
    ],
    "workers": [
        {"num_workers": 0},
        {"num_workers": 2, "persistent_workers": False},
        {"num_workers": 2, "persistent_workers": True},
    ],
    "accumulate": [1, 3, 4],
    "optimizer": ["sgd", "momentum", "adamw", "two, by hand"],
    "schedule": ["none", "warmup-cosine", "plateau on epochs", "plateau on steps", "one-cycle"],
    "precision": ["32-true", "bf16-mixed", FLOAT16],
    "augmentation": ["python", "numpy", "torch"],
    "loaders": ["one", "two"],
    "shuffled_validation": [False, True],
    "tensorboard": [False, True],
}


def is_possible(case: "Case") -> bool:
    """Whether Lightning can run it."""
    by_hand = case.optimizer == "two, by hand"
    if by_hand and (case.schedule != "none" or case.accumulate > 1 or case.precision == FLOAT16):
        return False
    validates_each_epoch = case.validation in CHOICES["validation"][:1]
    if case.schedule == "plateau on epochs":
        return validates_each_epoch
    return True


@dataclass(frozen=True)
class Case:
    """One choice of each."""

    length: dict[str, int]
    validation: dict[str, Any]
    workers: dict[str, Any]
    accumulate: int
    optimizer: str
    schedule: str
    precision: str
    augmentation: str
    loaders: str
    shuffled_validation: bool
    tensorboard: bool


class Points(Dataset[tuple[Tensor, int]]):
    """Points, moved each time by the generator of one library, and their indices."""

    def __init__(self, num_samples: int, augmentation: str) -> None:
        self.points = torch.linspace(-1, 1, num_samples)
        self.augmentation = augmentation

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draw = {
            "python": random.random,
            "numpy": np.random.rand,
            "torch": lambda: torch.rand(()).item(),
        }[self.augmentation]
        return self.points[index] + torch.tensor([float(draw()) for _ in range(4)]), index


class Project(LightningModule):
    """A module with dropout, batch normalisation, its own noise and every way of logging."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 1)
        self.mean = MeanMetric()
        self.seen: list[Any] = []
        self.automatic_optimization = case.optimizer != "two, by hand"

    def loss(self, points: Tensor) -> Tensor:
        noisy = points + 0.1 * torch.randn_like(points)
        return F.mse_loss(self.head(self.body(noisy)), points.sum(dim=1, keepdim=True))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        parts = batch.values() if isinstance(batch, dict) else [batch]
        self.seen.append([indices.tolist() for _, indices in parts])
        loss = torch.stack([self.loss(points) for points, _ in parts]).mean()
        self.mean.update(loss.detach())
        # what schedulers and callbacks decide on is the same on all ranks
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=4, sync_dist=True)
        self.log("largest", loss.detach(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
        return None

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch[0]), batch_size=len(batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        if self.case.optimizer == "two, by hand":
            body = torch.optim.SGD(self.body.parameters(), lr=0.01, momentum=0.9)
            return [body, torch.optim.AdamW(self.head.parameters(), lr=0.01)], []
        optimizer: torch.optim.Optimizer = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
            "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
            "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        }[self.case.optimizer](self.parameters())  # type: ignore[no-untyped-call]
        if self.case.schedule == "one-cycle":
            steps = int(self.trainer.estimated_stepping_batches)
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]
        if self.case.schedule.startswith("plateau"):
            epochs = self.case.schedule == "plateau on epochs"
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7)
            return [optimizer], [
                {
                    "scheduler": plateau,
                    "interval": "epoch" if epochs else "step",
                    "monitor": "val" if epochs else "loss_step",
                }
            ]
        return optimizer


def make_loaders(case: Case) -> tuple[Any, Any]:
    """Return the train and the validation loaders."""

    def loader(num_samples: int, **kwargs: Any) -> ResumableDataLoader:
        dataset = Points(num_samples, case.augmentation)
        return ResumableDataLoader(dataset, 4, seed=3, **case.workers, **kwargs)

    train: Any = loader(4 * NUM_BATCHES, shuffle=True, drop_last=True)
    if case.loaders == "two":
        # the shorter one starts again within an epoch
        train = {"long": train, "short": loader(4 * 4, shuffle=True, drop_last=True)}
    return train, loader(6, shuffle=case.shuffled_validation)


def make_trainer(case: Case, root: Path, *callbacks: Callback, **kwargs: Any) -> Trainer:
    """Return a trainer that saves between all batches."""
    options: dict[str, Any] = {"precision": case.precision}
    if case.precision == FLOAT16:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        options = {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}
    validates = case.validation.get("limit_val_batches") != 0
    stopping = [EarlyStopping("val", patience=50)] if validates else []
    keeping = ModelCheckpoint(
        root.parent / "kept",
        monitor="val" if validates else "loss_epoch",
        save_top_k=2,
        save_last=True,
    )
    keepers = [keeper for keeper in callbacks if isinstance(keeper, ModelCheckpoint)]
    schedule = [WarmupCosineLR(warmup=3)] if case.schedule == "warmup-cosine" else []
    return Trainer(
        accelerator="cpu",
        default_root_dir=str(root),
        logger=[CSVLogger(root), *([TensorBoardLogger(root)] if case.tensorboard else [])],
        log_every_n_steps=1,
        accumulate_grad_batches=case.accumulate,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ResumeCheckpoint(every_n_steps=1, keep_last=None),
            *schedule,
            *stopping,
            *([] if keepers else [keeping]),
            *callbacks,
        ],
        **{**case.length, **case.validation, **options, **kwargs},
    )


def run(
    case: Case,
    root: Path,
    *callbacks: Callback,
    ckpt_path: Path | None = None,
    module: type[Project] = Project,
    **kwargs: Any,
) -> dict[str, Any]:
    """Train, and return everything that must not depend on whether the run was stopped."""
    seed_everything(11, verbose=False)
    trainer, project = make_trainer(case, root, *callbacks, **kwargs), module(case)
    train, validation = make_loaders(case)
    path = None if ckpt_path is None else str(ckpt_path)
    trainer.fit(project, train, validation, ckpt_path=path)
    return {
        "weights": project.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "schedules": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "scaler": trainer.precision_plugin.state_dict(),
        "global_step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "callbacks": _without_paths([callback.state_dict() for callback in trainer.callbacks[1:]]),  # type: ignore[attr-defined]
        "callback_metrics": dict(trainer.callback_metrics),
        "seen": project.seen,
        "rows": _rows(root),
    }


def first_difference(one: Any, two: Any) -> str | None:
    """Return where two nests of tensors and plain values differ in any bit, or None."""
    (leaves, spec), (others, other_spec) = map(tree_flatten_with_path, (one, two))
    if spec != other_spec:
        return f"the structures: {spec} and {other_spec}"
    for (path, leaf), (_, other) in zip(leaves, others, strict=True):
        same = torch.equal(leaf, other) if isinstance(leaf, Tensor) else leaf == other
        if not same:
            return f"{keystr(path)}: {leaf} and {other}"
    return None


def _without_paths(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for state in states:
        # ModelCheckpoint saves current_score and never reads it
        for key in [key for key in state if "path" in key or key in ("dirpath", "current_score")]:
            del state[key]
        if "best_k_models" in state:
            state["best_k_models"] = sorted(float(v) for v in state["best_k_models"].values())
    return states


def _rows(root: Path) -> list[dict[str, str]]:
    return [
        {key: value for key, value in row.items() if value}
        for path in sorted(root.glob("lightning_logs/version_*/metrics.csv"))
        for row in csv.DictReader(path.read_text().splitlines())
    ]
