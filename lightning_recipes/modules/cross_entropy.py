"""What classifiers share: cross-entropy, accuracy, label smoothing."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lightning_recipes.modules.base import RecipeModule, WeightBy
from lightning_recipes.modules.optimizers import LRScaling
from lightning_recipes.modules.step import Step, cross_entropy_step

__all__ = ["CrossEntropyModule"]


class CrossEntropyModule(RecipeModule, ABC):
    """Base of classifiers on batches ``(inputs, target)``: a subclass says how to get the logits.

    Logs ``loss`` and ``accuracy`` per stage, see :class:`~lightning_recipes.RecipeModule`.

    Args:
        network: What :meth:`forward` runs.
        num_classes: C, the number of logits.
        label_smoothing: Share of the target spread over all classes, in [0, 1); in the loss of
            every stage.
        optimizer: As in :class:`~lightning_recipes.RecipeModule`.
        weight_by: As in :class:`~lightning_recipes.RecipeModule`.
        lr_scaling: As in :class:`~lightning_recipes.RecipeModule`.

    Raises:
        ValueError: ``label_smoothing`` is out of range.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        num_classes: int,
        label_smoothing: float = 0.0,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        weight_by: WeightBy = "batch",
        lr_scaling: LRScaling = "none",
    ) -> None:
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing is a share in [0, 1), got {label_smoothing}.")
        # Validating its arguments would make the metric wait for the device at every step.
        accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        super().__init__(
            optimizer=optimizer,
            metrics=MetricCollection({"accuracy": accuracy}),
            weight_by=weight_by,
            lr_scaling=lr_scaling,
        )
        # Named one by one: a network or an optimizer has no place in a checkpoint's numbers.
        self.save_hyperparameters("num_classes", "label_smoothing", "weight_by", "lr_scaling")
        self.network = network
        self.label_smoothing = label_smoothing

    @abstractmethod
    def forward(self, inputs: Any) -> Tensor:
        """Return the logits (B, C)."""

    def step(self, batch: Any) -> Step:
        """Return the cross-entropy of a batch ``(inputs, target)``."""
        inputs, target = batch
        return cross_entropy_step(self(inputs), target, label_smoothing=self.label_smoothing)
