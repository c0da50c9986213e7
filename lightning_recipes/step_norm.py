"""The gradient norm of an optimizer step: computed once, read by all who want it.

A callback that looks for NaN, one that logs the norm, and the clipping of the module need the same
number. Whoever asks first, in ``on_before_optimizer_step`` or ``configure_gradient_clipping``, has
it computed; the others find it. Nothing is computed for a step at which nobody asks.
"""

from weakref import WeakKeyDictionary

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from lightning_recipes.gradients import total_norm

__all__ = [
    "active_scaler",
    "check_gradients_are_whole",
    "forget_step_norm",
    "gradient_scale",
    "hides_gradients",
    "optimized_parameters",
    "step_norm",
]

# For each optimizer, the step whose norm this is. Weak: it ends with the training.
_norms: WeakKeyDictionary[Optimizer, tuple[int, Tensor]] = WeakKeyDictionary()


def step_norm(trainer: Trainer, optimizer: Optimizer) -> Tensor:
    """Return the 2-norm of the gradients of the coming step, unscaled, before clipping.

    Over the optimizer's parameters; a scalar on their device, the same on all ranks, which costs no
    synchronisation and under DDP no communication.

    Args:
        trainer: In the middle of an optimizer step, before the gradients are clipped.
        optimizer: The one that is about to step.
    """
    step, norm = _norms.get(optimizer, (None, None))
    if norm is None or step != trainer.global_step:
        norm = total_norm([parameter.grad for parameter in optimized_parameters(optimizer)])
        scale = gradient_scale(trainer, optimizer)
        if scale is not None:
            norm = norm / scale.to(norm.device)
        _norms[optimizer] = (trainer.global_step, norm)
    return norm


def forget_step_norm(trainer: Trainer) -> None:
    """Drop what is known, after a backward pass: readers call it in ``on_after_backward``.

    The number of the step is not enough where an optimizer evaluates its closure several times in
    one, as LBFGS does.
    """
    for optimizer in trainer.optimizers:
        _norms.pop(optimizer, None)


def gradient_scale(trainer: Trainer, optimizer: Optimizer) -> Tensor | None:
    """Return by what the gradients are multiplied before the step, a scalar; None for nothing.

    Lightning unscales them before its hooks, except for fused optimizers, which do it themselves
    inside ``step``. ``_step_supports_amp_scaling`` is what torch's GradScaler goes by (torch 2.13).
    """
    scaler = active_scaler(trainer)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return None
    first = optimized_parameters(optimizer)[0]
    scale: Tensor = scaler.scale(torch.ones((), device=first.device))
    return scale


def active_scaler(trainer: Trainer) -> GradScaler | None:
    """Return the loss scaler of float16 training, or None."""
    scaler: GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    return scaler if scaler is not None and scaler.is_enabled() else None


def optimized_parameters(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def hides_gradients(trainer: Trainer) -> bool:
    """Return whether the strategy keeps gradients where no norm of a step can be computed.

    FSDP (the first one) and DeepSpeed hold flat pieces of them, each rank its own.
    """
    return isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy)


def check_gradients_are_whole(trainer: Trainer, reader: str) -> None:
    """Raise a clear error at the start where no norm can be computed.

    Raises:
        MisconfigurationException: The strategy hides the gradients.
    """
    if hides_gradients(trainer):
        raise MisconfigurationException(
            f"{reader} needs gradients whose norm it can compute, and under "
            f"{type(trainer.strategy).__name__} each rank has a flat piece of them. Use DDP, or "
            "ModelParallelStrategy with fully_shard, or leave it out."
        )
