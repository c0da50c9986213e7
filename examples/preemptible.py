"""Train digits on a machine that may be taken away: ``python examples/preemptible.py``.

It runs the same command three times in a folder, as a scheduler would: the first is sent SIGTERM
in its 40th step, saves itself and ends with code 75; the second goes on and finishes, and is
compared with a run that was never stopped.
"""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from lightning_recipes import Classifier, DigitsDataModule, ResumeCheckpoint
from lightning_recipes.networks import ConvNet

ROOT = Path("runs/preemptible")


class Scheduler(Callback):
    """Wants the machine back at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Send the signal."""
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def job(root: Path, preempt_at: int) -> None:
    """Train, or go on from the newest file; this is all that a script of your own needs."""
    seed_everything(1)
    optimizer = partial(torch.optim.AdamW, lr=3e-3)
    module = Classifier(ConvNet(num_classes=10, dropout=0.5), num_classes=10, optimizer=optimizer)
    newest = max(root.glob("resume/*.ckpt"), default=None)
    trainer = Trainer(
        max_epochs=3,
        callbacks=[ResumeCheckpoint(max_wall_time="12:00:00"), Scheduler(preempt_at)],
        accelerator="cpu",
        default_root_dir=root,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DigitsDataModule(), ckpt_path=None if newest is None else str(newest))
    torch.save(module.state_dict(), root / "end.pt")


def run(root: Path, preempt_at: int) -> int:
    """Run a job in a process of its own; return its exit code."""
    command = [sys.executable, __file__, str(root), str(preempt_at)]
    code = subprocess.run(command).returncode
    print(f"exit code {code}, files {sorted(path.name for path in root.glob('resume/*.ckpt'))}")
    return code


if __name__ == "__main__":
    if len(sys.argv) > 1:
        job(Path(sys.argv[1]), int(sys.argv[2]))
        sys.exit()
    shutil.rmtree(ROOT, ignore_errors=True)
    codes = [run(ROOT, 40), run(ROOT, 40), run(ROOT / "whole", -1)]
    if codes != [75, 0, 0]:
        sys.exit(f"the jobs ended with {codes}")
    end, whole = torch.load(ROOT / "end.pt"), torch.load(ROOT / "whole/end.pt")
    if not all(torch.equal(end[name], whole[name]) for name in whole):
        sys.exit("the weights differ from those of the run that was never stopped")
    print("bit for bit the weights of the run that was never stopped")
