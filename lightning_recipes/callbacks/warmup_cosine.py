"""The warmup-cosine schedule as a callback."""

import math
from typing import Any, get_args

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer

from lightning_recipes.callbacks.taken_steps import TakenSteps
from lightning_recipes.schedules import OnNewHorizon, WarmupCosine

__all__ = ["WarmupCosineLR"]


class WarmupCosineLR(Callback):
    """Warm the learning rate up, let it fall along a cosine, keep it at its floor.

    The unit is the optimizer step, whatever accumulation, devices and epochs are. The curve is
    :func:`~lightning_recipes.warmup_cosine`, multiplied with each parameter group's own learning
    rate, and spans the whole training: a second ``fit`` on the same trainer goes on from
    ``global_step``, without a second warmup. The scheduler is an ordinary one of Lightning's, so
    ``LearningRateMonitor`` sees it and checkpoints hold it. Every rank computes the same rates,
    with no communication.

    Only optimizer steps that were taken move it: those that a GradScaler skips (float16) or that
    :class:`~lightning_recipes.NaNDetector` drops use no warmup up, though Lightning counts them in
    ``global_step``. A run that skipped some so ends a little above the floor. With a fused
    optimizer in float16, asking whether a step was taken waits for the device once a step.

    Args:
        warmup: An int is a number of optimizer steps, a float in [0, 1) a share of all steps.
        min_ratio: The floor as a share of the peak, in [0, 1].
        total_steps: Optimizer steps until the floor; by default all steps of the training, from
            ``max_epochs``, ``max_steps``, ``limit_train_batches`` and ``accumulate_grad_batches``
            or a ``GradientAccumulationScheduler``.
        on_new_horizon: What a resume with another horizon does, as in
            :class:`~lightning_recipes.WarmupCosine`: ``"error"``, ``"keep"`` or ``"replan"``.

    Raises:
        ValueError: An argument is out of its range, or the warmup would take all steps.
        MisconfigurationException: At the start of ``fit``: the length of the training is unknown,
            or something else owns the schedule.
    """

    def __init__(
        self,
        *,
        warmup: int | float = 0.05,
        min_ratio: float = 0.0,
        total_steps: int | None = None,
        on_new_horizon: OnNewHorizon = "error",
    ) -> None:
        if isinstance(warmup, float) and not 0.0 <= warmup < 1.0:
            raise ValueError(
                f"warmup as a float is a share of all optimizer steps in [0, 1), got {warmup}. "
                "Give an int for a number of steps."
            )
        if isinstance(warmup, int) and warmup < 0:
            raise ValueError(f"warmup as an int is a number of steps >= 0, got {warmup}.")
        if not 0.0 <= min_ratio <= 1.0:
            raise ValueError(f"min_ratio is a share of the peak in [0, 1], got {min_ratio}.")
        if on_new_horizon not in get_args(OnNewHorizon):
            choices = get_args(OnNewHorizon)
            raise ValueError(f"on_new_horizon must be one of {choices}, got {on_new_horizon!r}.")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps must be >= 1 or None, got {total_steps}.")
        self.warmup = warmup
        self.min_ratio = min_ratio
        self.total_steps = total_steps
        self.on_new_horizon = on_new_horizon
        self._scheduler: _OnTakenSteps | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the scheduler on the optimizer, before a checkpoint's state is loaded into it."""
        self._check_owner(trainer, pl_module)
        total_steps = self.total_steps or self._estimate(trainer)
        warmup_steps = (
            self.warmup if isinstance(self.warmup, int) else round(self.warmup * total_steps)
        )
        optimizer = trainer.optimizers[0]
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        # A second fit goes on where the first one's curve was, and not at Lightning's count.
        taken = trainer.global_step
        if self._scheduler is not None:
            taken = min(taken, self._scheduler.last_epoch)
        self._scheduler = _OnTakenSteps(
            optimizer,
            warmup_steps=warmup_steps,
            total_steps=total_steps,
            min_ratio=self.min_ratio,
            on_new_horizon=self.on_new_horizon,
            last_epoch=taken - 1,
        )
        trainer.lr_scheduler_configs.append(LRSchedulerConfig(self._scheduler, interval="step"))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch the optimizer no longer."""
        if self._scheduler is not None:
            self._scheduler.end()

    def _check_owner(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.lr_scheduler_configs:
            owner = type(trainer.lr_scheduler_configs[0].scheduler).__name__
            raise MisconfigurationException(
                f"A learning rate has one owner: WarmupCosineLR found the scheduler {owner}, from "
                f"{type(pl_module).__name__}.configure_optimizers or another callback. Remove one "
                "of the two."
            )
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise MisconfigurationException(
                "WarmupCosineLR needs automatic optimization with one optimizer, got "
                f"automatic_optimization={pl_module.automatic_optimization} and "
                f"{len(trainer.optimizers)} optimizers. Step lightning_recipes.WarmupCosine "
                "yourself, in configure_optimizers and training_step."
            )

    def _estimate(self, trainer: Trainer) -> int:
        steps = trainer.estimated_stepping_batches
        if steps < 0 or math.isinf(steps):
            raise MisconfigurationException(
                "WarmupCosineLR needs to know the number of optimizer steps, and it is unlimited "
                f"(max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps}, or a loader "
                "without a length). Set Trainer(max_steps=...), or WarmupCosineLR(total_steps=...)."
            )
        schedulers = [
            callback
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            if isinstance(callback, GradientAccumulationScheduler)
        ]
        if not schedulers or trainer.max_epochs in (None, -1):
            return int(steps)
        # Lightning multiplies the first epoch's number of steps with the number of epochs.
        steps_of_epochs = (
            math.ceil(trainer.num_training_batches / schedulers[-1].get_accumulate_grad_batches(e))
            for e in range(trainer.max_epochs)
        )
        limit = math.inf if trainer.max_steps == -1 else trainer.max_steps
        return int(min(sum(steps_of_epochs), limit))


class _OnTakenSteps(WarmupCosine):
    """Goes on only after steps that the optimizer took."""

    _taken_steps: TakenSteps | None = None  # while torch sets the first rate

    def __init__(self, optimizer: Optimizer, **kwargs: Any) -> None:
        super().__init__(optimizer, **kwargs)
        self._taken_steps = TakenSteps(optimizer)
        self._num_seen = 0

    def step(self, epoch: int | None = None) -> None:
        """Move, if the optimizer did."""
        if self._taken_steps is None:
            super().step(epoch)
        elif self._taken_steps.count > self._num_seen:
            self._num_seen = self._taken_steps.count
            super().step(epoch)

    def end(self) -> None:
        """Watch the optimizer no longer."""
        assert self._taken_steps is not None
        self._taken_steps.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the curve and the step, without what this process has counted."""
        state = super().state_dict()
        del state["_taken_steps"], state["_num_seen"]
        return state
