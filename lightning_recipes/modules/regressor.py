"""Regression of numbers."""

from typing import Any, final

import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.regression import MeanAbsoluteError

from lightning_recipes.modules.base import RecipeModule, WeightBy
from lightning_recipes.modules.optimizers import LRScaling
from lightning_recipes.modules.step import Step

__all__ = ["Regressor"]


@final
class Regressor(RecipeModule):
    """Least-squares training of a network on batches ``(inputs, target)``.

    Logs ``loss`` (mean squared error) and ``mae`` (mean absolute error, in the target's unit) per
    stage, see :class:`~lightning_recipes.RecipeModule`.

    Args:
        network: Maps inputs (B, ...) to predictions of exactly the target's shape.
        optimizer: As in :class:`~lightning_recipes.RecipeModule`.
        weight_by: As in :class:`~lightning_recipes.RecipeModule`.
        lr_scaling: As in :class:`~lightning_recipes.RecipeModule`.

    Raises:
        ValueError: Predictions and target have different shapes, which would broadcast into a
            wrong mean.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        weight_by: WeightBy = "batch",
        lr_scaling: LRScaling = "none",
    ) -> None:
        super().__init__(
            optimizer=optimizer,
            metrics=MetricCollection({"mae": MeanAbsoluteError()}),
            weight_by=weight_by,
            lr_scaling=lr_scaling,
        )
        self.save_hyperparameters("weight_by", "lr_scaling")
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the predictions, shaped like the target."""
        predictions: Tensor = self.network(inputs)
        return predictions

    def step(self, batch: Any) -> Step:
        """Return the squared error of a batch ``(inputs, target)``."""
        inputs, target = batch
        preds = self(inputs).float()
        if preds.shape != target.shape:
            raise ValueError(
                f"Predictions and target must have one shape, got {tuple(preds.shape)} and "
                f"{tuple(target.shape)}. Squeeze or unsqueeze the last axis of one of them."
            )
        with torch.autocast(preds.device.type, enabled=False):
            loss = F.mse_loss(preds, target.float())
        return Step(loss, len(target), preds, target.float())
