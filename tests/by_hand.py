"""A small network, and the gradient norms of its training computed by hand, in float64."""

import copy
import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_recipes import RecipeModule, ResumableDataLoader, Step

LR = {"body.weight": 0.1, "body.bias": 0.1, "head.weight": 0.05, "head.bias": 0.05, "unused": 0.1}
NUM_BATCHES = 10  # of an epoch, 2 points each

Rows = list[dict[str, float]]


class Layers(nn.Module):
    """A body and a head, a factor that is frozen, and a parameter that is in no loss."""

    def build(self) -> None:
        torch.manual_seed(0)
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.full((8,), 2.0), requires_grad=False)

    def loss(self, points: Tensor, target: Tensor) -> Tensor:
        output = self.head(self.frozen * torch.tanh(self.body(points)))
        loss: Tensor = (output[:, 0].to(target) - target).square().mean()
        return loss


class Plain(LightningModule, Layers):
    """With two parameter groups."""

    def __init__(self, optimizer: Any = torch.optim.SGD) -> None:
        super().__init__()
        self.build()
        self.optimizer = optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(*batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        body = [*self.body.parameters(), self.unused]
        groups = [{"params": body}, {"params": self.head.parameters(), "lr": LR["head.bias"]}]
        optimizer: torch.optim.Optimizer = self.optimizer(groups, lr=LR["body.bias"])
        return optimizer


class Recipe(RecipeModule, Layers):
    """The same as a RecipeModule."""

    def __init__(self, optimizer: Any = torch.optim.SGD) -> None:
        super().__init__(optimizer=partial(optimizer, lr=LR["body.bias"]))
        self.build()

    def step(self, batch: Any) -> Step:
        return Step(self.loss(*batch), len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": [p], "lr": LR[n]} for n, p in self.named_parameters() if n in LR]
        return self.optimizer(groups)


class ByHand(Plain):
    """Steps two optimizers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        body, head = self.optimizers()  # type: ignore[attr-defined]
        body.zero_grad()
        head.zero_grad()
        self.manual_backward(self.loss(*batch))
        body.step()
        head.step()

    def configure_optimizers(self) -> Any:
        body = [*self.body.parameters(), self.unused]
        return [
            torch.optim.SGD(body, lr=LR["body.bias"]),
            torch.optim.SGD(self.head.parameters(), lr=LR["head.bias"]),
        ]


def make_data(num_batches: int = NUM_BATCHES) -> TensorDataset:
    """Return points with a target."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(2 * num_batches, 4, generator=generator)
    return TensorDataset(points, points.sum(1).sin() + 2)


def make_trainer(root: Path | None, *callbacks: Callback, **kwargs: Any) -> Trainer:
    """Return a quiet trainer of two epochs that logs every step under ``root``."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False if root is None else CSVLogger(root),
        "max_epochs": 2,
        "log_every_n_steps": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
    }
    return Trainer(callbacks=list(callbacks), **{**quiet, **kwargs})


def float16(init_scale: float = 2.0**16, **kwargs: Any) -> dict[str, Any]:
    """Return the trainer options of float16 with a GradScaler on the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, **kwargs)
    return {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}


def fit(
    root: Path | None,
    *callbacks: Callback,
    module: LightningModule,
    ckpt_path: Path | None = None,
    **kwargs: Any,
) -> tuple[Trainer, Rows]:
    """Train on the data in its order; return the trainer and what was logged."""
    trainer = make_trainer(root, *callbacks, **kwargs)
    loader = ResumableDataLoader(make_data(), 2)
    validation = loader if isinstance(module, RecipeModule) else None
    trainer.fit(module, loader, validation, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return trainer, [] if root is None else read_rows(root)


def read_rows(root: Path) -> Rows:
    """Return the rows of gradients and loss scales, without the cells that are empty."""
    (path,) = root.glob("lightning_logs/version_0/metrics.csv")
    rows = []
    for row in csv.DictReader(path.read_text().splitlines()):
        if any(row[key] for key in row if key.startswith(("grad", "update", "loss_scale"))):
            mine = {k: v for k, v in row.items() if v and not k.startswith(("train", "epoch"))}
            rows.append({key: float(value) for key, value in mine.items()})
    return rows


def norm(tensors: list[Tensor], order: float) -> float:
    """Return the norm of all values, computed by numpy."""
    return float(
        np.linalg.norm(np.concatenate([t.double().numpy().ravel() for t in tensors]), order)
    )


def rows_by_hand(
    *,
    order: float = 2.0,
    batch_size: int = 2,
    max_epochs: int = 2,
    accumulate_grad_batches: int = 1,
    gradient_clip_val: float | None = None,
    gradient_clip_algorithm: str = "norm",
) -> Rows:
    """Return what has to be logged at each step of SGD: a plain loop over a float64 copy.

    Lightning divides the loss by the length of a full window, in the one left over too.
    """
    layers = copy.deepcopy(Plain()).double()
    batches = list(DataLoader(make_data(), batch_size=batch_size))
    suffix = "" if order == 2 else f"_{order:g}"
    trained = {n: p for n, p in layers.named_parameters() if n in LR}
    modules = {"body": ["body.weight", "body.bias"], "head": ["head.weight", "head.bias"]}
    rows: Rows = []
    windows = [
        batches[start : start + accumulate_grad_batches]
        for start in range(0, len(batches), accumulate_grad_batches)
    ]
    for window in windows * max_epochs:
        losses = [layers.loss(*(part.double() for part in batch)) for batch in window]
        loss = torch.stack(losses).sum() / accumulate_grad_batches
        names = [name for name in trained if name != "unused"]
        found = torch.autograd.grad(loss, [trained[name] for name in names])
        before = dict(zip(names, found, strict=True))
        after = dict(before)
        if gradient_clip_val and gradient_clip_algorithm == "value":
            limit = gradient_clip_val
            after = {n: g.clamp(-limit, limit) for n, g in before.items()}
        elif gradient_clip_val:
            factor = min(1.0, gradient_clip_val / norm(list(before.values()), 2))
            after = {n: g * factor for n, g in before.items()}
        row = {
            "step": float(len(rows)),
            f"grad_norm{suffix}": norm(list(before.values()), order),
            f"grad_norm{suffix}/clipped": norm(list(after.values()), order),
            f"update_ratio{suffix}/unused": 0.0,
        }
        for module, members in modules.items():
            weights = norm([trained[name].detach() for name in members], order)
            change = norm([LR[name] * after[name] for name in members], order)
            row[f"grad_norm{suffix}/{module}"] = norm([before[name] for name in members], order)
            row[f"update_ratio{suffix}/{module}"] = change / weights
        rows.append(row)
        with torch.no_grad():
            for name, gradient in after.items():
                trained[name].sub_(LR[name] * gradient)
    return rows
