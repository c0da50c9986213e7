"""Classification of sequences of different lengths."""

from typing import Any, final

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lightning_recipes.data.collate import Padded
from lightning_recipes.modules.base import RecipeModule
from lightning_recipes.modules.optimizers import LRScaling
from lightning_recipes.modules.step import Step, cross_entropy_step

__all__ = ["SequenceClassifier"]


@final
class SequenceClassifier(RecipeModule):
    """Cross-entropy training on batches ``(sequences, target)`` with padded sequences.

    Logs ``loss`` and ``accuracy`` per stage, see :class:`~lightning_recipes.RecipeModule`. A
    sequence counts as one item, whatever its length.

    Args:
        network: Maps values (B, T, ...) and a boolean mask (B, T), True where real, to logits
            (B, C), and gives the padding no say in them.
        num_classes: C.
        label_smoothing: Share of the target spread over all classes, in [0, 1).
        optimizer: As in :class:`~lightning_recipes.RecipeModule`.
        lr_scaling: As in :class:`~lightning_recipes.RecipeModule`.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        num_classes: int,
        label_smoothing: float = 0.0,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scaling: LRScaling = "none",
    ) -> None:
        super().__init__(
            optimizer=optimizer,
            metrics=MetricCollection(
                {"accuracy": MulticlassAccuracy(num_classes, average="micro")}
            ),
            lr_scaling=lr_scaling,
        )
        # Named one by one: a network or an optimizer has no place in a checkpoint's numbers.
        self.save_hyperparameters("num_classes", "label_smoothing", "lr_scaling")
        self.network = network
        self.label_smoothing = label_smoothing

    def forward(self, sequences: Padded) -> Tensor:
        """Return the logits (B, C)."""
        logits: Tensor = self.network(sequences.values, sequences.mask)
        return logits

    def step(self, batch: Any) -> Step:
        """Return the cross-entropy of a batch ``(sequences, target)``."""
        sequences, target = batch
        return cross_entropy_step(self(sequences), target, label_smoothing=self.label_smoothing)
