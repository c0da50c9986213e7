"""Gradient norms and update ratios in the log."""

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightning_recipes.callbacks.step_log import is_logging_step, log_at_step
from lightning_recipes.gradients import module_norms, total_norm
from lightning_recipes.step_norm import (
    check_gradients_are_whole,
    forget_step_norm,
    gradient_scale,
    optimized_parameters,
    step_norm,
)

__all__ = ["GradientNormMonitor"]


class GradientNormMonitor(Callback):
    """Log the norm of the gradients of an optimizer step, on their true scale.

    ========================= ======================================================================
    logged key                what
    ========================= ======================================================================
    ``grad_norm``             norm of all gradients: averaged over the accumulation window and the
                              ranks, divided by the loss scale, before clipping
    ``grad_norm/clipped``     the same after clipping: what the optimizer used
    ``grad_norm/MODULE``      norm of the gradients of a module, with ``by_module``
    ``update_ratio/MODULE``   norm of a step's change of the weights, over the norm of the weights
                              before; about 1e-3 is usual, infinite where those were all 0
    ========================= ======================================================================

    With another order than 2 the first word is e.g. ``grad_norm_inf`` or ``update_ratio_inf``, so
    that two monitors do not collide; with several optimizers, under manual optimization, it is e.g.
    ``grad_norm/optimizer_1``.
    The keys are logged once for every logging step, at the number of the optimizer step (Lightning
    counts from 0), however epochs and accumulation fall, and are in ``trainer.callback_metrics``
    for EarlyStopping and its like. Every rank has the same values.

    Between logging steps it computes nothing and waits for nothing. On a logging step the 2-norm is
    the one that clipping and :class:`~lightning_recipes.NaNDetector` use, too.

    Args:
        norm_type: The order of the norm, > 0 or ``inf``.
        by_module: How many parts of a module's name to keep, e.g. 1 for ``encoder``, 2 for
            ``encoder.layers``; 0 for no norms by module.
        update_ratio: Whether to log the update ratios, by module (``by_module``, or 1). Takes one
            copy of the weights on logging steps.
        every_n_steps: Optimizer steps between two logging steps; by default the trainer's
            ``log_every_n_steps``.

    Raises:
        ValueError: An argument is out of range.
        MisconfigurationException: At the start of ``fit``: the strategy keeps gradients in flat
            pieces (FSDP, DeepSpeed).
    """

    def __init__(
        self,
        *,
        norm_type: float = 2.0,
        by_module: int = 0,
        update_ratio: bool = False,
        every_n_steps: int | None = None,
    ) -> None:
        order = float(norm_type)
        if not order > 0:
            raise ValueError(f"norm_type is the order of a norm, > 0 or inf, got {norm_type}.")
        if by_module < 0:
            raise ValueError(f"by_module is a number of parts of a name >= 0, got {by_module}.")
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps must be >= 1 or None, got {every_n_steps}.")
        self.norm_type = order
        self.by_module = by_module
        self.update_ratio = update_ratio
        self.every_n_steps = every_n_steps
        self._suffix = "" if order == 2 else f"_{order:g}"
        self._waiting: dict[Optimizer, _Measured] = {}
        self._hooks: list[RemovableHandle] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a strategy under which no norm can be computed."""
        if stage == "fit":
            check_gradients_are_whole(trainer, "GradientNormMonitor")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Be there after each step, when the gradients are as the optimizer used them."""

        def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if optimizer in self._waiting:
                self._measure_after(trainer, pl_module, optimizer)

        self._stop_watching()  # those of a fit that failed: it had no teardown
        self._hooks = [each.register_step_post_hook(look) for each in trainer.optimizers]

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """There are new gradients."""
        forget_step_norm(trainer)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Measure before the gradients are clipped."""
        if not is_logging_step(trainer, self.every_n_steps):
            return
        named = _named_parameters(pl_module, optimizer)
        scale = gradient_scale(trainer, optimizer)
        name = self._key("grad_norm", trainer, optimizer)
        metrics = {name: self._norm_before(trainer, optimizer, scale)}
        if self.by_module:
            gradients = [(name, parameter.grad) for name, parameter in named.items()]
            norms = module_norms(gradients, depth=self.by_module, norm_type=self.norm_type)
            for module, norm in norms.items():
                metrics[f"{name}/{module}"] = norm if scale is None else norm / scale
        weights = {}
        if self.update_ratio:
            weights = {name: parameter.detach().clone() for name, parameter in named.items()}
        self._waiting[optimizer] = _Measured(trainer.global_step, metrics, weights)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what was measured before a step that the scaler of float16 then did not call."""
        self._log_waiting(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Log the norms of a step that ends the training, the most telling of all."""
        self._log_waiting(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch the optimizers no longer."""
        self._stop_watching()

    def _stop_watching(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._waiting.clear()

    @torch.no_grad()
    def _measure_after(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        measured = self._waiting.pop(optimizer)
        gradients = [parameter.grad for parameter in optimized_parameters(optimizer)]
        clipped = f"{self._key('grad_norm', trainer, optimizer)}/clipped"
        measured.metrics[clipped] = total_norm(gradients, self.norm_type)
        if self.update_ratio:
            depth = self.by_module or 1
            before = measured.weights
            named = _named_parameters(pl_module, optimizer)
            changes = [(name, weight - before[name]) for name, weight in named.items()]
            norms = module_norms(before.items(), depth=depth, norm_type=self.norm_type)
            ratio = self._key("update_ratio", trainer, optimizer)
            for module, change in module_norms(
                changes, depth=depth, norm_type=self.norm_type
            ).items():
                # no change is none of weights that are all 0, too
                relative = torch.where(change == 0, change, change / norms[module])
                measured.metrics[f"{ratio}/{module}"] = relative
        log_at_step(trainer, measured.metrics, measured.step)

    def _log_waiting(self, trainer: Trainer) -> None:
        for measured in self._waiting.values():
            log_at_step(trainer, measured.metrics, measured.step)
        self._waiting.clear()

    def _norm_before(self, trainer: Trainer, optimizer: Optimizer, scale: Tensor | None) -> Tensor:
        if self.norm_type == 2:
            return step_norm(trainer, optimizer)
        gradients = [parameter.grad for parameter in optimized_parameters(optimizer)]
        norm = total_norm(gradients, self.norm_type)
        return norm if scale is None else norm / scale

    def _key(self, what: str, trainer: Trainer, optimizer: Optimizer) -> str:
        if len(trainer.optimizers) == 1:
            return what + self._suffix
        return f"{what}{self._suffix}/optimizer_{trainer.optimizers.index(optimizer)}"


@dataclass(frozen=True)
class _Measured:
    step: int
    metrics: dict[str, Tensor]
    weights: dict[str, Tensor]


def _named_parameters(pl_module: LightningModule, optimizer: Optimizer) -> dict[str, Tensor]:
    optimized = set(map(id, optimized_parameters(optimizer)))
    return {name: p for name, p in pl_module.named_parameters() if id(p) in optimized}
