"""What a training step costs with everything attached: ``python -m tests.benchmarks.step``.

The whole bundle (:func:`bundle`) against plain Lightning with clipping, Lightning with the usual
callbacks written by hand, transformers' ``Trainer``, and a bare loop of torch, on three networks
and one thread. The last table takes the bundle apart.

Everyone trains the same module with the same AdamW on the same batches, which were made before:
loading is asked in ``loader.py``. Nothing decays, since ours and transformers leave biases and
norms out and plain Lightning does not, which would make its step longer by other work. The figure
of a run is the median time from one batch's fetching to the next, the first tenth left out: what
comes every 50 steps (a line of the log) is in the run, but not in its median.
"""

import gc
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from lightning_recipes import (
    GradientNormMonitor,
    LossScaleMonitor,
    NaNDetector,
    RecipeModule,
    ResumableDataLoader,
    ResumeCheckpoint,
    Step,
    WarmupCosineLR,
    warmup_cosine,
)
from lightning_recipes.networks import ConvNet
from tests.benchmarks.report import Table, compare, main

CLIP, WARMUP = 1.0, 0.05
NUM_CLASSES = 10
NUM_BATCHES = 8  # different ones, which come again and again

Batch = dict[str, Tensor]
Callbacks = Callable[[], list[Callback]]


class Objective(nn.Module):
    """A classifier with its loss, in the form that transformers trains."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, target: Tensor) -> Batch:
        """Return the loss."""
        return {"loss": nn.functional.cross_entropy(self.network(inputs), target)}


def small_tensors() -> tuple[nn.Module, tuple[int, ...]]:
    """Return 98 parameter tensors, where what is done for each shows most, and a batch's shape."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(24)]
    return nn.Sequential(*blocks, nn.Linear(64, NUM_CLASSES)), (16, 64)


def conv_net() -> tuple[nn.Module, tuple[int, ...]]:
    """Return the network of the digits, and the shape of 64 of them."""
    return ConvNet(num_classes=NUM_CLASSES), (64, 1, 8, 8)


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    """Return a block of width 128 with 4 heads, and the shape of 16 sequences of 64."""
    block = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.Sequential(block, nn.Flatten(), nn.Linear(64 * 128, NUM_CLASSES)), (16, 64, 128)


class Batches(Dataset[Batch]):
    """Ready batches as the samples of a data set that takes the time whenever one is fetched.

    Args:
        shape: Of the inputs.
        num_steps: How many batches an epoch has.
    """

    def __init__(self, shape: tuple[int, ...], num_steps: int) -> None:
        self.shape = shape
        self.made = [
            {"inputs": torch.randn(shape), "target": torch.randint(NUM_CLASSES, shape[:1])}
            for _ in range(NUM_BATCHES)
        ]
        self.num_steps = num_steps
        self.times: list[float] = []

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, index: int) -> Batch:
        self.times.append(time.perf_counter())
        return self.made[index % NUM_BATCHES]

    def step_us(self) -> float:
        """Return the median time between two."""
        steps = [end - start for start, end in itertools.pairwise(self.times)]
        return statistics.median(steps[len(steps) // 10 :]) * 1e6


class Plain(LightningModule):
    """What one writes without this package."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss, and log it."""
        loss: Tensor = self.objective(**batch)["loss"]
        self.log("train/loss", loss, batch_size=len(batch["target"]))
        return loss

    def configure_optimizers(self) -> Any:
        """Build the optimizer."""
        return AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)


class PlainWithSchedule(Plain):
    """With a schedule for every step."""

    def configure_optimizers(self) -> Any:
        """Build both."""
        optimizer = super().configure_optimizers()
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, cosine(total))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Recipe(RecipeModule):
    """The same on the base module."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(optimizer=partial(AdamW, lr=1e-3, weight_decay=0.0))
        self.objective = objective

    def step(self, batch: Batch) -> Step:
        """Return the loss."""
        return Step(self.objective(**batch)["loss"], len(batch["target"]))


class FiniteCheck(Callback):
    """The usual check of the loss and of every gradient."""

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Stop at a loss that is not finite."""
        if not torch.isfinite(loss):
            raise RuntimeError("loss")

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Stop at the first gradient that is not finite."""
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise RuntimeError(name)


class GradNorm(Callback):
    """Lightning's helper in the hook, as its documentation shows."""

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Log every norm."""
        pl_module.log_dict(grad_norm(pl_module, norm_type=2))


def cosine(total_steps: int) -> Callable[[int], float]:
    """Return the factor of a step, of warmup and cosine."""
    warmup = round(WARMUP * total_steps)
    return partial(warmup_cosine, warmup_steps=warmup, total_steps=total_steps)


def bundle() -> list[Callback]:
    """Return all callbacks for a step, as a user attaches them."""
    return [ResumeCheckpoint(), *watchers(), WarmupCosineLR(warmup=WARMUP)]


def watchers(every_n_steps: int = 1) -> list[Callback]:
    """Return those that look at the numbers."""
    detector = NaNDetector(every_n_steps=every_n_steps)
    return [detector, GradientNormMonitor(), LossScaleMonitor()]


def by_hand() -> list[Callback]:
    """Return the usual ones; the checkpoint is never due."""
    rare = ModelCheckpoint(every_n_train_steps=10**6)
    return [FiniteCheck(), GradNorm(), LearningRateMonitor(), rare]


def fit(module: LightningModule, callbacks: list[Callback], data: Batches, **options: Any) -> None:
    """Train for one epoch with Lightning, and for ours with our loader."""
    load = ResumableDataLoader if isinstance(module, Recipe) else DataLoader
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            gradient_clip_val=CLIP,
            logger=CSVLogger(root),
            default_root_dir=root,
            callbacks=callbacks,
            enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            **{"devices": 1, **options},
        )
        trainer.fit(module, load(data, batch_size=1, collate_fn=itemgetter(0)))


def fit_transformers(objective: Objective, data: Batches) -> None:
    """Train for one epoch with transformers' Trainer."""
    import transformers

    with tempfile.TemporaryDirectory() as root:
        arguments = transformers.TrainingArguments(
            output_dir=root,
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=1,
            optim="adamw_torch",
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=WARMUP,
            max_grad_norm=CLIP,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(
            objective, arguments, data_collator=itemgetter(0), train_dataset=data
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def fit_torch(objective: nn.Module, data: Batches) -> None:
    """Train for one epoch without anybody's help."""
    optimizer = AdamW(objective.parameters(), lr=1e-3, weight_decay=0.0)
    for batch in DataLoader(data, batch_size=1, collate_fn=itemgetter(0)):
        optimizer.zero_grad()
        objective(**batch)["loss"].backward()
        clip_grad_norm_(objective.parameters(), CLIP)
        optimizer.step()


Network = Callable[[], tuple[nn.Module, tuple[int, ...]]]
Train = Callable[[Objective, Batches], None]


def lightning(module: Callable[[Objective], LightningModule], callbacks: Callbacks) -> Train:
    """Return the training of a module with callbacks."""
    return lambda objective, data: fit(module(objective), callbacks(), data)


def microseconds(train: Train, network: Network, num_steps: int) -> float:
    """Return the median time of a step of one run."""
    gc.collect()  # the last run's, in which all modules and their callbacks are
    seed_everything(1, verbose=False)
    made, shape = network()
    data = Batches(shape, num_steps)
    train(Objective(made), data)
    return data.step_us()


BUNDLE = lightning(Recipe, bundle)
WAYS: dict[str, Train | None] = {
    "ours: RecipeModule, clipping, all callbacks": BUNDLE,
    "Lightning, clipping": lightning(Plain, list),
    "Lightning, clipping, callbacks by hand": lightning(PlainWithSchedule, by_hand),
    "transformers' Trainer": fit_transformers if find_spec("transformers") else None,
    "Composer (needs torch < 2.7.1)": None,
    "a bare loop of torch, clipping": fit_torch,
}
PARTS: dict[str, Train | None] = {
    "ours: all": BUNDLE,
    "  RecipeModule, clipping": lightning(Recipe, list),
    "  and NaNDetector": lightning(Recipe, lambda: [NaNDetector()]),
    "  and both monitors": lightning(Recipe, watchers),
    "  the same with every_n_steps=50": lightning(Recipe, lambda: watchers(50)),
    "  RecipeModule, clipping, ResumeCheckpoint": lightning(Recipe, lambda: [ResumeCheckpoint()]),
    "  RecipeModule, clipping, WarmupCosineLR": lightning(Recipe, lambda: [WarmupCosineLR()]),
    "Lightning, clipping": lightning(Plain, list),
    "  and a finite check by hand": lightning(Plain, lambda: [FiniteCheck()]),
    "  and grad_norm, logged": lightning(Plain, lambda: [GradNorm()]),
}


def tables(quick: bool) -> Iterator[Table]:
    """Yield a table for each network, and that of the parts."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    num_rounds = 2 if quick else 7
    questions: list[tuple[str, Network, int, dict[str, Train | None]]] = [
        ("98 small tensors", small_tensors, 300, WAYS),
        ("convolutions, 64 images of 8x8", conv_net, 200, WAYS),
        ("a Transformer block, 16 x 64 x 128", transformer, 80, WAYS),
        ("98 small tensors, the parts", small_tensors, 300, PARTS),
    ]
    for title, network, num_steps, trains in questions[: 3 if quick else None]:
        ways = {
            name: train and partial(microseconds, train, network, num_steps // (4 if quick else 1))
            for name, train in trains.items()
        }
        yield compare(
            f"a step: {title}", "us a step", ways, num_rounds=num_rounds, warm_up=not quick
        )


if __name__ == "__main__":
    main(tables, __doc__)
