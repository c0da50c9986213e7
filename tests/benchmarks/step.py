"""What an optimizer step costs with everything attached: ``python -m tests.benchmarks.step``.

A model of many small tensors, where what is done for each of them shows most: 24 blocks of Linear,
LayerNorm and GELU, 98 parameter tensors, on one thread. Whole runs of each variant take turns in
one process; the figure of a run is the median of its steps, and the table has the median of the
runs and of their ratios to plain Lightning with clipping.
"""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from lightning_recipes import (
    GradientNormMonitor,
    LossScaleMonitor,
    NaNDetector,
    RecipeModule,
    Step,
)
from tests.ranks import run_trainer_ranks

WIDTH, NUM_BLOCKS, BATCH_SIZE = 64, 24, 16
CLIP = 1.0


def make_network() -> nn.Sequential:
    """Return 98 parameter tensors: 24 blocks of 4, and a last layer."""
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())
        for _ in range(NUM_BLOCKS)
    ]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH))


class Plain(LightningModule):
    """What one writes without this package."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss, and log it."""
        loss = nn.functional.mse_loss(self.network(batch[0]), batch[0])
        self.log("train/loss", loss.detach(), batch_size=len(batch[0]))
        return loss

    def configure_optimizers(self) -> Optimizer:
        """Build the same optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class PlainWithNorms(Plain):
    """With Lightning's own helper in the hook, as its documentation shows."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log every norm."""
        self.log_dict(grad_norm(self, norm_type=2))


class PlainWithFiniteCheck(Plain):
    """With the usual check of every gradient."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Stop at the first that is not finite."""
        for parameter in self.parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise RuntimeError("not finite")


class PlainWithBoth(PlainWithNorms):
    """With both."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Do both."""
        PlainWithFiniteCheck.on_before_optimizer_step(self, optimizer)  # type: ignore[arg-type]
        super().on_before_optimizer_step(optimizer)


class Recipe(RecipeModule):
    """The same on the base module."""

    def __init__(self) -> None:
        super().__init__(optimizer=partial(torch.optim.AdamW, lr=1e-3))
        self.network = make_network()

    def step(self, batch: list[Tensor]) -> Step:
        """Return the loss."""
        loss = nn.functional.mse_loss(self.network(batch[0]), batch[0])
        return Step(loss, len(batch[0]))


class Watch(Callback):
    """Takes the time of every batch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take it."""
        self.times.append(time.perf_counter())


Make = Callable[[], tuple[LightningModule, list[Callback]]]


def microseconds(make: Make, num_steps: int, num_ranks: int) -> float:
    """Return the median time of a step of one run."""
    seed_everything(1, verbose=False)
    data = torch.randn(num_steps * BATCH_SIZE, WIDTH)
    module, callbacks = make()
    watch = Watch()
    trainer = Trainer(
        accelerator="cpu",
        devices=num_ranks,
        strategy="ddp" if num_ranks > 1 else "auto",
        max_epochs=1,
        callbacks=[watch, *callbacks],
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(data), BATCH_SIZE))
    steps = [b - a for a, b in itertools.pairwise(watch.times)][num_steps // 10 :]
    return statistics.median(steps) * 1e6


VARIANTS: dict[str, Make] = {
    "Lightning with clipping": lambda: (Plain(), []),
    "RecipeModule with clipping": lambda: (Recipe(), []),
    "  and NaNDetector": lambda: (Recipe(), [NaNDetector()]),
    "  and both monitors": lambda: (
        Recipe(),
        [NaNDetector(), GradientNormMonitor(), LossScaleMonitor()],
    ),
    "  with every_n_steps=50": lambda: (
        Recipe(),
        [NaNDetector(every_n_steps=50), GradientNormMonitor(), LossScaleMonitor()],
    ),
    "Lightning, all callbacks": lambda: (Plain(), [NaNDetector(), GradientNormMonitor()]),
    "Lightning, finite check": lambda: (PlainWithFiniteCheck(), []),
    "Lightning, grad_norm logged": lambda: (PlainWithNorms(), []),
    "Lightning, both": lambda: (PlainWithBoth(), []),
}


def measure(num_steps: int, num_rounds: int, num_ranks: int) -> list[dict[str, float]]:
    """Return the times of all variants, round by round, without the first, which warms up."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    return [
        {name: microseconds(make, num_steps, num_ranks) for name, make in VARIANTS.items()}
        for _ in range(num_rounds + 1)
    ][1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=300, help="optimizer steps of a run")
    parser.add_argument("--num-rounds", type=int, default=9, help="runs of each variant")
    parser.add_argument("--num-ranks", type=int, default=1, help="processes under DDP, on CPUs")
    options = parser.parse_args()
    arguments = (options.num_steps, options.num_rounds, options.num_ranks)
    if options.num_ranks > 1:
        rounds = run_trainer_ranks(measure, *arguments, world_size=options.num_ranks)[0]
    else:
        rounds = measure(*arguments)
    first = next(iter(VARIANTS))
    print(f"{'':30} {'us a step':>10} {'ratio':>7} {'lowest':>7} {'highest':>7}")
    for name in VARIANTS:
        ratios = sorted(times[name] / times[first] for times in rounds)
        middle = statistics.median(times[name] for times in rounds)
        ratio = statistics.median(ratios)
        print(f"{name:30} {middle:10.0f} {ratio:7.3f} {ratios[0]:7.3f} {ratios[-1]:7.3f}")


if __name__ == "__main__":
    main()
