"""One epoch of training, with ours and with what people use instead."""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, default_collate

from lightning_recipes import (
    GradientNormMonitor,
    LossScaleMonitor,
    NaNDetector,
    RecipeModule,
    ResumeCheckpoint,
    Step,
    WarmupCosineLR,
    warmup_cosine,
)
from tests.benchmarks.workload import Batch, Objective, Samples

CLIP, WARMUP = 1.0, 0.05
# Nothing decays: ours and transformers leave biases and norms out and plain Lightning does not,
# which would make its step longer by other work.
OPTIMIZER = partial(AdamW, lr=1e-3, weight_decay=0.0)

Loader = Callable[..., DataLoader[Any]]


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
        return OPTIMIZER(self.parameters())


class PlainWithSchedule(Plain):
    """With a schedule for every step."""

    def configure_optimizers(self) -> Any:
        """Build both."""
        optimizer = super().configure_optimizers()
        total = int(self.trainer.estimated_stepping_batches)
        warmup = round(WARMUP * total)
        factor = partial(warmup_cosine, warmup_steps=warmup, total_steps=total)
        scheduler = LambdaLR(optimizer, factor)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Recipe(RecipeModule):
    """The same on the base module."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(optimizer=OPTIMIZER)
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


def fit(
    module: LightningModule,
    callbacks: list[Callback],
    data: Samples,
    *,
    load: Loader = DataLoader,
    **options: Any,
) -> None:
    """Train with Lightning."""
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
        trainer.fit(module, load(data, data.batch_size, shuffle=True))


def fit_transformers(objective: Objective, data: Samples) -> None:
    """Train with transformers' Trainer."""
    import transformers

    with tempfile.TemporaryDirectory() as root:
        arguments = transformers.TrainingArguments(
            output_dir=root,
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=data.batch_size,
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
            objective, arguments, data_collator=default_collate, train_dataset=data
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def fit_torch(objective: nn.Module, data: Samples) -> None:
    """Train without anybody's help."""
    optimizer = OPTIMIZER(objective.parameters())
    for batch in DataLoader(data, data.batch_size, shuffle=True):
        optimizer.zero_grad()
        objective(**batch)["loss"].backward()
        clip_grad_norm_(objective.parameters(), CLIP)
        optimizer.step()
