"""The LightningModule whose numbers are right by default."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from lightning_recipes.data.loader import ResumableDataLoader
from lightning_recipes.gradients import clip_with_norm
from lightning_recipes.launch.strangers import refuse_strangers
from lightning_recipes.modules.count_weighting import CountWeighting
from lightning_recipes.modules.logged_in_place import leave_logged_in_place
from lightning_recipes.modules.optimizers import LRScaling, lr_scale, parameter_groups
from lightning_recipes.modules.step import Step
from lightning_recipes.step_norm import (
    forget_step_norm,
    hides_gradients,
    optimized_parameters,
    step_norm,
)

__all__ = ["RecipeModule", "WeightBy"]

WeightBy = Literal["batch", "count"]


class RecipeModule(LightningModule, ABC):
    """Base of modules: a subclass implements :meth:`step`, and the rest is done here.

    ================ ============================ ==================================================
    logged key       when                         what
    ================ ============================ ==================================================
    ``train/loss``   every ``log_every_n_steps``  loss of the batch on rank 0
    ``val/loss``     every validation             mean over all items of all ranks
    ``test/loss``    at the test                  the same
    ``STAGE/METRIC`` at the end of the epoch      each of ``metrics``, over all ranks
    ================ ============================ ==================================================

    Means weigh each batch by its ``count``. Under DDP every sample of an evaluation counts once:
    the batches that only even out the ranks weigh nothing. The learning-rate schedule belongs to
    :class:`~lightning_recipes.WarmupCosineLR`, never to the module. Clipping by norm
    (``Trainer(gradient_clip_val=...)``) uses the one norm of the step that
    :class:`~lightning_recipes.NaNDetector` and :class:`~lightning_recipes.GradientNormMonitor`
    read, too. Losses are float32 under every precision.

    Args:
        optimizer: Builds the optimizer from parameter groups, e.g.
            ``functools.partial(torch.optim.AdamW, lr=1e-3)``. Biases and norms do not decay.
        metrics: Torchmetrics, updated with the step's ``preds`` and ``target``; each stage gets a
            copy of its own.
        weight_by: What has equal weight in the gradient of an optimizer step: every ``"batch"`` of
            the accumulation window and the ranks, as everywhere, or every item that the steps
            ``"count"``, e.g. every token: then the gradient is that of the mean over all of them,
            as if they had been one batch. For ragged data; costs one scalar all-reduce a step.
        lr_scaling: How the learning rate grows with the number of ranks:
            :func:`~lightning_recipes.lr_scale`.

    Raises:
        ValueError: ``lr_scaling`` or ``weight_by`` is none of its choices.
        MisconfigurationException: At the start of ``fit``: ``weight_by="count"`` under manual
            optimization, or under FSDP or DeepSpeed, which keep gradients in flat pieces.
    """

    def __init__(
        self,
        *,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        metrics: Metric | MetricCollection | None = None,
        weight_by: WeightBy = "batch",
        lr_scaling: LRScaling = "none",
    ) -> None:
        super().__init__()
        lr_scale(lr_scaling, 1)
        if weight_by not in get_args(WeightBy):
            raise ValueError(f"weight_by must be one of {get_args(WeightBy)}, got {weight_by!r}.")
        self.weight_by = weight_by
        self._weighting = CountWeighting()
        self.optimizer = optimizer
        self.lr_scaling = lr_scaling
        collection = MetricCollection({} if metrics is None else metrics)
        self.train_metrics = collection.clone(prefix="train/")
        self.val_metrics = collection.clone(prefix="val/")
        self.test_metrics = collection.clone(prefix="test/")

    @abstractmethod
    def step(self, batch: Any) -> Step:
        """Return loss, count, and what the metrics need, for one batch of any stage.

        Compute the loss in float32 (``logits.float()``): under mixed precision the logits are not.
        """

    def on_fit_start(self) -> None:
        """Empty the metrics: after ``trainer.validate`` they hold tensors of its inference mode."""
        refuse_strangers(self.trainer)
        self._weighting.start()
        if self.weight_by == "count":
            self._check_can_weigh()
        for metrics in (self.train_metrics, self.val_metrics, self.test_metrics):
            metrics.reset()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a training batch, and log it."""
        step = self.step(batch)
        # Not in the progress bar: Lightning would fetch it from the device after every batch.
        self.log("train/loss", step.loss.detach(), batch_size=step.count)  # type: ignore[arg-type]
        if step.preds is not None:
            self.train_metrics.update(step.preds.detach(), step.target)
            self._log_metrics(self.train_metrics, step)
        if self.weight_by == "batch":
            return step.loss
        if self._is_filler("train", batch_idx):
            step = replace(step, count=0)
        return self._weighting.loss(self.trainer, step, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the validation's means."""
        self._evaluate("val", self.val_metrics, batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the test's means."""
        self._evaluate("test", self.test_metrics, batch, batch_idx, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Return the ``preds`` of the step; override for batches without a target."""
        return self.step(batch).preds

    def configure_optimizers(self) -> Optimizer:
        """Build the optimizer; reads nothing that would build the loaders."""
        optimizer = self.optimizer(parameter_groups(self))
        factor = lr_scale(self.lr_scaling, self.trainer.world_size)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        if self.lr_scaling != "none":
            rank_zero_info(
                f"lr_scaling={self.lr_scaling!r}: learning rate x {factor:g} for "
                f"{self.trainer.world_size} ranks."
            )
        return optimizer

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Make the optimizer step, with gradients weighted as ``weight_by`` says.

        After the backward pass and before anybody looks at the gradients.
        """
        closure = optimizer_closure
        if self.weight_by == "count" and optimizer_closure is not None:
            compute_gradients = optimizer_closure

            def closure() -> Any:
                result = compute_gradients()
                self._weighting.rescale(self.trainer, optimizer)  # type: ignore[arg-type]
                return result

        super().optimizer_step(epoch, batch_idx, optimizer, closure)

    def on_after_backward(self) -> None:
        """There are new gradients: forget the norm of the old ones."""
        forget_step_norm(self.trainer)
        leave_logged_in_place(self.trainer)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the trainer says, with the norm that the callbacks of this step have read.

        Also for a fused optimizer in float16, whose gradients are still multiplied by the loss
        scale, and which Lightning refuses to clip.
        """
        is_by_norm = gradient_clip_algorithm in (None, "norm")
        if not gradient_clip_val or not is_by_norm or hides_gradients(self.trainer):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        clip_with_norm(
            optimized_parameters(optimizer),
            max_norm=gradient_clip_val,
            norm=step_norm(self.trainer, optimizer),
        )

    def _evaluate(
        self,
        stage: str,
        metrics: MetricCollection,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        step = self.step(batch)
        has_preds = step.preds is not None
        if self._is_filler(stage, batch_idx, dataloader_idx):
            step = Step(torch.zeros_like(step.loss), 0)
        elif has_preds:
            metrics.update(step.preds, step.target)
        if has_preds:
            # Also for a filler, or its rank would stay away when the others compute the metric.
            self._log_metrics(metrics, step)
        # A float on the loss's device: Lightning (2.6.6) averages the ranks' counts, and the mean
        # of integers would be rounded.
        count = step.loss.new_ones(()) * step.count
        self.log(f"{stage}/loss", step.loss, batch_size=count, sync_dist=True, prog_bar=True)  # type: ignore[arg-type]

    def _log_metrics(self, metrics: MetricCollection, step: Step) -> None:
        if len(metrics):
            self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=step.count)  # type: ignore[arg-type]

    def _check_can_weigh(self) -> None:
        if not self.automatic_optimization or hides_gradients(self.trainer):
            raise MisconfigurationException(
                'weight_by="count" rescales the gradients between the backward pass and the step, '
                "which needs automatic optimization and a strategy that shows them; got "
                f"automatic_optimization={self.automatic_optimization} and "
                f"{type(self.trainer.strategy).__name__}."
            )

    def _is_filler(self, stage: str, batch_idx: int, dataloader_idx: int = 0) -> bool:
        name = "train_dataloader" if stage == "train" else f"{stage}_dataloaders"
        loaders = getattr(self.trainer, name)
        if not isinstance(loaders, ResumableDataLoader):
            loaders = CombinedLoader(loaders).flattened[dataloader_idx]
        return isinstance(loaders, ResumableDataLoader) and loaders.is_filler(batch_idx)
