"""Trainings that are killed at random moments: ``python -m tests.soak ROOT --kills 50 --ranks 2``.

Imports once, and forks a training for every attempt: a start then takes a tenth of a second. The
training saves itself at every step and goes on from the newest intact checkpoint. The moment of a
kill is drawn: after so many steps of this attempt, and so many microseconds more, which lie inside
the writing of a checkpoint as well as between two.
"""

import argparse
import json
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_recipes import ResumeCheckpoint, WarmupCosineLR
from lightning_recipes.checkpoints import newest_intact
from lightning_recipes.resume import resume_path
from tests.project import PointsDataModule, make_module

Counter = mmap.mmap


class Progress(Callback):
    """Tells the watching process how many steps are saved, as this one believes."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # ResumeCheckpoint, the first callback, has just saved.
        self.counter[:8] = struct.pack("q", trainer.global_step)


def train(root: Path, ranks: int, counter: Counter) -> None:
    """Train from wherever the run stands to its end."""
    warnings.simplefilter("ignore")
    keeper = ResumeCheckpoint(every_n_steps=1, keep_last=2)
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=4,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(root),
        callbacks=[keeper, WarmupCosineLR(warmup=3), Progress(counter)],
    )
    module = make_module()
    data = PointsDataModule(batch_size=4 // ranks)
    trainer.fit(module, datamodule=data, ckpt_path=resume_path(trainer, module=module))
    if trainer.is_global_zero:
        torch.save(module.state_dict(), root / "weights.pt")


def fork(root: Path, ranks: int, counter: Counter) -> list[int]:
    """Start an attempt; return its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        status = 1
        try:
            if ranks > 1:
                os.environ.update(
                    TORCHELASTIC_RUN_ID="soak",
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(ranks),
                    LOCAL_WORLD_SIZE=str(ranks),
                )
            os.dup2(os.open(root.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            os.dup2(2, 1)
            train(root, ranks, counter)
            status = 0
        finally:
            os._exit(status)
    return children


def attempt(root: Path, ranks: int, draw: random.Random | None) -> tuple[bool, int]:
    """Run until a drawn moment, or to the end; return whether it ended, and the step saved."""
    counter = mmap.mmap(-1, 8)
    counter[:8] = struct.pack("q", -1)
    children = fork(root, ranks, counter)
    if draw is not None:
        target, delay_s = draw.randint(1, 4), draw.random() * 0.02
        first = None
        while not _has_ended(children[0]):
            (step,) = struct.unpack("q", counter[:8])
            first = step if first is None and step >= 0 else first
            if first is not None and step - first >= target:
                break
        time.sleep(delay_s)
        draw.shuffle(children)
        for child in children:
            os.kill(child, signal.SIGKILL)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    (step,) = struct.unpack("q", counter[:8])
    return not any(statuses), step


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main() -> None:
    """Kill and go on, and print what was seen as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--kills", type=int, default=50, help="attempts that are killed")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    torch.set_num_threads(1)
    draw, lost, kills, runs = random.Random(options.seed), [], 0, 0
    whole = options.root / "whole"
    whole.mkdir(parents=True)
    assert attempt(whole, options.ranks, None)[0]
    expected = torch.load(whole / "weights.pt", weights_only=True)
    is_equal = True
    while kills < options.kills:
        root = options.root / f"run{runs}"
        root.mkdir()
        runs += 1
        has_ended = False
        while not has_ended:
            is_last = kills >= options.kills
            has_ended, step = attempt(root, options.ranks, None if is_last else draw)
            kills += not has_ended
            found = newest_intact(root / "resume")
            saved = -1 if found is None else int(found.stem.removeprefix("step="))
            if step > 0:
                lost.append(step - saved)
            assert not (is_last and not has_ended), "an attempt failed by itself"
        weights = torch.load(root / "weights.pt", weights_only=True)
        is_equal &= all(torch.equal(weights[name], expected[name]) for name in expected)
    report = {"kills": kills, "runs": runs, "most_steps_lost": max(lost), "is_equal": is_equal}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
