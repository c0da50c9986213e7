"""Checkpoints to be looked at: small real ones, sharded ones, and ones that mean harm."""

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from lightning_recipes import ResumeCheckpoint, resumable


class Payload:
    """Unpickled, makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.target),)


class Model(BoringModel):
    """Trains with a loader that knows its position."""

    def train_dataloader(self) -> Any:
        return resumable(super().train_dataloader())


def train(folder: Path, *, num_steps: int = 3) -> Trainer:
    """Train, with a file of every step in ``folder``."""
    trainer = Trainer(
        max_steps=num_steps,
        callbacks=[ResumeCheckpoint(str(folder), every_n_steps=1, keep_last=None)],
        accelerator="cpu",
        logger=False,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Model())
    return trainer


def contents(step: int = 1, **changes: Any) -> dict[str, Any]:
    """Return what a small checkpoint holds; None for an entry leaves it out."""
    whole = {
        "state_dict": {"weight": torch.arange(40.0), "mask": torch.tensor([0.0, -torch.inf])},
        "loops": {},
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.6.6",
        "optimizer_states": [],
        "lr_schedulers": [],
        **changes,
    }
    return {key: value for key, value in whole.items() if value is not None}


def save(path: Path, step: int = 1, **changes: Any) -> Path:
    """Save a small checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(contents(step, **changes), path)
    return path


def save_shards(folder: Path, *, step: int = 1, weight: Tensor | None = None) -> Path:
    """Save as Lightning's ModelParallelStrategy does, without its process group."""
    module = nn.Linear(3, 4)
    if weight is not None:
        module.weight.data = weight
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(3)).sum().backward()
    optimizer_state = get_optimizer_state_dict(module, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is alone
        save_distributed(
            {"state_dict": module.state_dict(), "optimizer_0": optimizer_state},
            checkpoint_id=folder,
        )
    rest = contents(step, state_dict=None, optimizer_states=None)
    torch.save(rest, folder / "meta.pt")
    return folder


def plant_in_metadata(folder: Path, target: Path) -> None:
    """Give shards metadata that makes a folder when torch reads it."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data = Payload(target)
    path.write_bytes(pickle.dumps(metadata))
