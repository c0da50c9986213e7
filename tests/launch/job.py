"""A script that is launched: ``job.py <root> [<moment>:<step>]``, moment kill, stop or none.

Leaves in ``<root>/end.pt`` the weights, and of every step since the last start the ids, the noise
and the loss of all ranks.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import Dataset

import lightning_recipes
from lightning_recipes import RecipeDataModule, RecipeModule, ResumeCheckpoint, Step
from lightning_recipes.callbacks.ranks import gather

GLOBAL_BATCH_SIZE, NUM_SAMPLES, NUM_EPOCHS = 16, 200, 2
NUM_STEPS = NUM_SAMPLES // GLOBAL_BATCH_SIZE * NUM_EPOCHS


class Points(Dataset[tuple[int, Tensor]]):
    """Points with noise, and which ones they are."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        position = torch.linspace(-1, 1, NUM_SAMPLES)[index]
        return index, position.sin() + 0.1 * torch.randn(8)


class Data(RecipeDataModule):
    def setup(self, stage: str) -> None:
        self.train_set = Points()


class Module(RecipeModule):
    def __init__(self) -> None:
        super().__init__(optimizer=partial(torch.optim.SGD, lr=0.05), weight_by="count")
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def step(self, batch: tuple[Tensor, Tensor]) -> Step:
        _, points = batch
        return Step(nn.functional.mse_loss(self.layers(points), points), count=len(points))


class Record(Callback):
    """Notes what the ranks had in each step."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        indices, points = batch
        loss = trainer.callback_metrics["train/loss"].item()
        ranks = gather((indices.tolist(), points.tolist(), loss))
        samples = [pair for ids, rows, _ in ranks for pair in zip(ids, rows, strict=True)]
        mean = sum(loss for *_, loss in ranks) / len(ranks)
        self.steps[trainer.global_step] = {"samples": sorted(samples), "loss": mean}


class Accident(Callback):
    """Kills the last rank, or asks the launcher to stop, once, after a step."""

    def __init__(self, moment: str, step: int) -> None:
        self.moment, self.step = moment, step

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if trainer.global_step != self.step or not is_first:
            return
        if self.moment == "kill" and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.moment == "stop" and trainer.global_rank == 0:
            os.kill(os.getppid(), signal.SIGTERM)


def main(root: Path, accident: str = "none:0", **options: Any) -> dict[str, Any]:
    """Train, and return what is written down."""
    moment, _, step = accident.partition(":")
    seed_everything(3)
    record = Record()
    trainer = lightning_recipes.trainer(
        max_epochs=NUM_EPOCHS,
        callbacks=[ResumeCheckpoint(every_n_steps=3), record, Accident(moment, int(step))],
        default_root_dir=str(root),
        logger=False,
        enable_checkpointing=False,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    module = Module()
    data = Data(batch_size=GLOBAL_BATCH_SIZE // trainer.world_size, num_workers=0)
    trainer.fit(module, data, ckpt_path=lightning_recipes.resume_path(trainer, module=module))
    end = {
        "weights": module.state_dict(),
        "steps": record.steps,
        "world_size": trainer.world_size,
        "num_nodes": trainer.num_nodes,
        "precision": trainer.precision,
    }
    if trainer.is_global_zero:
        torch.save(end, root / "end.pt")
    return end


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
