"""Kill a run, resume it, and look: ``python examples/resume_exactly.py`` draws runs/resume.png."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightning_recipes import Classifier, DigitsDataModule, ResumeCheckpoint, resumable
from lightning_recipes.networks import ConvNet

ROOT = Path("runs/resume")
KILLED_AT = 57  # of 95 steps, in the middle of the third epoch


class Losses(Callback):
    """The loss of every step, and a crash at one of them."""

    def __init__(self, crash_at: int | None) -> None:
        self.crash_at = crash_at
        self.losses: dict[int, float] = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the loss."""
        self.losses[trainer.global_step] = float(outputs["loss"])
        if trainer.global_step == self.crash_at:
            raise RuntimeError("killed")


def train(exact: bool, *, crash_at: int | None = None, resume: bool = False) -> dict[int, float]:
    """Train a classifier of digits, with lightning_recipes or without; return loss by step."""
    seed_everything(1)
    data = DigitsDataModule()
    data.setup("fit")
    loader: Any = DataLoader(data.train_set, batch_size=64, shuffle=True, drop_last=True)  # type: ignore[arg-type]
    keeper: Callback = ModelCheckpoint(ROOT / "plain", every_n_train_steps=10, save_top_k=-1)
    if exact:
        loader, keeper = resumable(loader), ResumeCheckpoint(str(ROOT / "exact"), every_n_steps=10)
    losses, options = Losses(crash_at), {"default_root_dir": ROOT, "logger": False}
    trainer = Trainer(max_epochs=5, callbacks=[keeper, losses], accelerator="cpu", **options)  # type: ignore[arg-type]
    optimizer = partial(torch.optim.AdamW, lr=3e-3)
    module = Classifier(ConvNet(num_classes=10, dropout=0.5), num_classes=10, optimizer=optimizer)
    files = sorted((ROOT / ("exact" if exact else "plain")).glob("*step=*50.ckpt"))
    try:
        trainer.fit(module, loader, ckpt_path=str(files[0]) if resume else None)
    except RuntimeError as error:
        print(error)
    return losses.losses


if __name__ == "__main__":
    matplotlib.use("Agg")
    figure, axes = matplotlib.pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, exact in zip(axes, (True, False), strict=True):
        shutil.rmtree(ROOT, ignore_errors=True)
        train(exact, crash_at=KILLED_AT)
        resumed = train(exact, resume=True)
        whole = train(exact)
        same = sum(whole[step] == loss for step, loss in resumed.items())
        axis.plot(list(whole), list(whole.values()), "k-", lw=3, alpha=0.3, label="never stopped")
        axis.plot(list(resumed), list(resumed.values()), "r-", lw=1, label="killed and resumed")
        axis.set(title="lightning_recipes" if exact else "plain Lightning", xlabel="step")
        axis.legend(title=f"{same} of {len(resumed)} losses are bit for bit the same")
    figure.savefig("runs/resume.png", dpi=120, bbox_inches="tight")
    print("runs/resume.png")
