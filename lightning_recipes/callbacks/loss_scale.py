"""The loss scale of float16 in the log."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer

from lightning_recipes.callbacks.step_log import is_logging_step, log_at_step
from lightning_recipes.callbacks.taken_steps import TakenSteps
from lightning_recipes.step_norm import active_scaler

__all__ = ["LossScaleMonitor"]

_VERSION = 1


class LossScaleMonitor(Callback):
    """Log the loss scale of float16 mixed precision, and warn when it falls too low.

    ============================ ===================================================================
    logged key                   what, at the number of the optimizer step
    ============================ ===================================================================
    ``loss_scale``               what the loss of this step was multiplied by
    ``loss_scale/steps_to_grow`` steps without an overflow until the scale grows
    ``loss_scale/skipped_steps`` optimizer steps so far that were not taken
    ============================ ===================================================================

    A scale that halves again and again means that gradients overflow whatever it is. Reading it
    waits for the device, so that is done on logging steps only. Every rank has the same values.
    Without a GradScaler (float32, bfloat16) there is nothing to log, and a warning says so.

    Args:
        min_scale: Warn once when the scale falls below it, and again after it has recovered.
        every_n_steps: Optimizer steps between two logging steps; by default the trainer's
            ``log_every_n_steps``.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(self, *, min_scale: float = 1.0, every_n_steps: int | None = None) -> None:
        if not min_scale > 0:
            raise ValueError(f"min_scale must be > 0, got {min_scale}.")
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps must be >= 1 or None, got {every_n_steps}.")
        self.min_scale = min_scale
        self.every_n_steps = every_n_steps
        self._skipped_before = 0
        self._num_due = 0
        self._taken: list[TakenSteps] = []
        self._is_low = False

    @property
    def skipped_steps(self) -> int:
        """How many optimizer steps were due and not taken, so far; can wait for the device."""
        return self._skipped_before + self._num_due - sum(taken.count for taken in self._taken)

    def state_dict(self) -> dict[str, Any]:
        """Return the count of skipped steps."""
        return {"version": _VERSION, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._stop_watching()
        self._skipped_before = state_dict["skipped_steps"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the optimizers, if there is a scaler."""
        self._stop_watching()  # those of a fit that failed: it had no teardown
        self._is_low = False
        if active_scaler(trainer) is None:
            rank_zero_warn(
                f"LossScaleMonitor has nothing to log: precision {trainer.precision} has no loss "
                "scale."
            )
            return
        self._taken = [TakenSteps(optimizer) for optimizer in trainer.optimizers]

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Log the scale of the step that is about to be made."""
        scaler = active_scaler(trainer)
        if scaler is None:
            return
        if is_logging_step(trainer, self.every_n_steps):
            state = scaler.state_dict()
            to_grow = state["growth_interval"] - state["_growth_tracker"]
            log_at_step(
                trainer,
                {
                    "loss_scale": state["scale"],
                    "loss_scale/steps_to_grow": to_grow,
                    "loss_scale/skipped_steps": self.skipped_steps,
                },
                trainer.global_step,
            )
            self._warn_if_low(state["scale"])
        self._num_due += 1

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch the optimizers no longer."""
        self._stop_watching()

    def _stop_watching(self) -> None:
        self._skipped_before, self._num_due = self.skipped_steps, 0
        for taken in self._taken:
            taken.end()
        self._taken = []

    def _warn_if_low(self, scale: float) -> None:
        if scale < self.min_scale and not self._is_low:
            rank_zero_warn(
                f"The loss scale has fallen to {scale:g}, below min_scale={self.min_scale:g}: "
                "gradients overflow float16 whatever it is. Train in bfloat16, or look for what "
                "grows with GradientNormMonitor(by_module=1)."
            )
        self._is_low = scale < self.min_scale
