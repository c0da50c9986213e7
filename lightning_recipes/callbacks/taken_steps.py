"""Whether an optimizer step was taken, or only called."""

import math
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["TakenSteps", "drop_step"]


def drop_step(optimizer: Optimizer, *, is_scaled: bool) -> None:
    """Let the coming step of an optimizer change nothing, not even its own state.

    Args:
        optimizer: Called right after, as always.
        is_scaled: Whether its gradients are still multiplied by a loss scale: then it is fused and
            skips by itself, and the scaler insists on gradients to look at.
    """
    if not is_scaled:
        optimizer.zero_grad(set_to_none=True)
        return
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    next(gradient for gradient in gradients if gradient is not None).fill_(math.nan)


class TakenSteps:
    """Counts the steps in which an optimizer could change a weight.

    Lightning counts every one that was due. Not taken are those that a GradScaler skips, and those
    without any gradient, as a dropped window or a ``training_step`` that returned None leaves it.

    With an optimizer that is not fused the scaler does not call ``step`` at all, and nothing waits
    for the device here. A fused one is called and skips inside its kernel; it is told so by
    ``found_inf``, which torch's GradScaler sets on it for the time of the step (torch 2.13).

    Args:
        optimizer: The optimizer to watch, from now on.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._num_certain = 0
        self._num_on_device: Tensor | None = None
        self._hook = optimizer.register_step_post_hook(self._look)

    @property
    def count(self) -> int:
        """How many were taken; asking after a fused step in float16 waits for the device."""
        if self._num_on_device is not None:
            self._num_certain += int(self._num_on_device)
            self._num_on_device = None
        return self._num_certain

    def end(self) -> None:
        """Watch no longer."""
        self._hook.remove()

    def _look(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            return
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None:
            self._num_certain += 1
            return
        taken = (found_inf == 0).int()
        self._num_on_device = taken if self._num_on_device is None else self._num_on_device + taken
