"""Warmup-cosine: the factor of a step, the ``LRScheduler`` on it, and a look at any schedule.

Every public implementation looked at has another curve: some waste the first update at learning
rate 0, some never reach the peak, some divide by zero for a warmup of 1, some climb again after the
end. This one states both ends and holds the last value for ever.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["OnNewHorizon", "WarmupCosine", "simulate", "warmup_cosine"]

OnNewHorizon = Literal["error", "keep", "replan"]


def warmup_cosine(
    step: int, *, warmup_steps: int, total_steps: int, min_ratio: float = 0.0
) -> float:
    """Return the factor on the learning rate for the optimizer step ``step`` (0-based).

    ========================== ==============================================================
    ``step``                   factor
    ========================== ==============================================================
    ``k < warmup_steps``       ``(k + 1) / warmup_steps``: the first update is never wasted
    ``k == warmup_steps``      1
    up to ``total_steps``      half a cosine from 1 down to ``min_ratio``
    ``k >= total_steps``       ``min_ratio``, for ever
    ========================== ==============================================================

    Args:
        step: Optimizer steps already taken.
        warmup_steps: Length of the linear rise, in optimizer steps; 0 starts at the peak.
        total_steps: Where the cosine reaches ``min_ratio``, in optimizer steps.
        min_ratio: The floor as a share of the peak.

    Source:
        I. Loshchilov and F. Hutter, "SGDR", 2017, https://arxiv.org/abs/1608.03983 (the cosine);
        P. Goyal et al., 2017, https://arxiv.org/abs/1706.02677 (the warmup).

    Example:
        >>> [round(warmup_cosine(k, warmup_steps=4, total_steps=10), 3) for k in range(12)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067, 0.0, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return _cosine(step, start=warmup_steps, stop=total_steps, high=1.0, low=min_ratio)


def _cosine(step: int, *, start: int, stop: int, high: float, low: float) -> float:
    """Return the height of half a cosine that falls from ``start`` to ``stop`` and stays low."""
    if step >= stop:
        return low
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * (step - start) / (stop - start)))


class WarmupCosine(LRScheduler):
    """Multiply each parameter group's own learning rate by :func:`warmup_cosine`.

    Call ``step()`` once after every optimizer step. Its state is a few numbers, the curve is a
    function of the step alone, and groups keep their ratio.

    A saved run can go on with another horizon, and what that means is said beforehand: ``"error"``
    refuses; ``"keep"`` follows the saved curve to its end and then its floor; ``"replan"`` falls
    from the rate reached so far along a new half cosine to the new end (a warmup still under way is
    finished first). The rate never climbs: a run that was at its floor stays there.

    Args:
        optimizer: The optimizer; its groups' ``lr`` are the peaks.
        warmup_steps: As in :func:`warmup_cosine`.
        total_steps: As in :func:`warmup_cosine`; greater than ``warmup_steps``.
        min_ratio: As in :func:`warmup_cosine`; in [0, 1].
        on_new_horizon: What a loaded state with other arguments means.
        last_epoch: Optimizer steps already taken, less one; torch's own name for it.

    Raises:
        ValueError: An argument is out of its range, or a loaded state has another curve.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        warmup_steps: int,
        total_steps: int,
        min_ratio: float = 0.0,
        on_new_horizon: OnNewHorizon = "error",
        last_epoch: int = -1,
    ) -> None:
        for name, steps in (("warmup_steps", warmup_steps), ("total_steps", total_steps)):
            if not isinstance(steps, int) or steps < 0:
                raise ValueError(f"{name} is a number of optimizer steps >= 0, got {steps!r}.")
        if warmup_steps >= total_steps:
            raise ValueError(
                f"warmup_steps must be less than total_steps, got {warmup_steps} and "
                f"{total_steps}: nothing would be left to train at the peak. Shorten the warmup or "
                "train longer."
            )
        if not 0.0 <= min_ratio <= 1.0:
            raise ValueError(f"min_ratio is a share of the peak in [0, 1], got {min_ratio}.")
        self.on_new_horizon = on_new_horizon
        self.requested = {
            "warmup_steps": warmup_steps,
            "total_steps": total_steps,
            "min_ratio": min_ratio,
        }
        self.warmup_steps = warmup_steps
        self.fall = {"start": warmup_steps, "stop": total_steps, "high": 1.0, "low": min_ratio}
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return each group's learning rate for the coming optimizer step."""
        factor = self._factor(self.last_epoch)
        return [base_lr * factor for base_lr in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the curve and the step, as plain numbers."""
        state: dict[str, Any] = super().state_dict()
        state.pop("on_new_horizon")  # a choice of this run, not a state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the saved step."""
        saved, requested = state_dict.get("requested"), self.requested
        is_new = saved != requested
        if saved is None or (is_new and self.on_new_horizon == "error"):
            raise ValueError(
                f"The saved schedule is {saved}, the new one {requested}: the learning rate would "
                "jump. Resume with the same horizon (max_epochs, max_steps, "
                'accumulate_grad_batches), or set on_new_horizon="keep" (the saved curve to its '
                'end, then its floor) or "replan" (from the rate reached to the new end).'
            )
        super().load_state_dict(state_dict)
        self.requested = requested
        if is_new and self.on_new_horizon == "replan":
            start = max(self.last_epoch, self.warmup_steps)
            low = min(requested["min_ratio"], self._factor(start))
            stop = requested["total_steps"]
            self.fall = {"start": start, "stop": stop, "high": self._factor(start), "low": low}

    def _factor(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return _cosine(step, **self.fall)  # type: ignore[arg-type]


def simulate(
    scheduler: Callable[[Optimizer], LRScheduler], num_steps: int, *, base_lr: float = 1.0
) -> list[float]:
    """Return the learning rates that the first ``num_steps`` optimizer steps would use.

    The same door for a test, a plot and a doubt; it works with every scheduler of torch that is
    stepped without a metric.

    Args:
        scheduler: Builds the scheduler on an optimizer, e.g. a ``functools.partial``.
        num_steps: Number of optimizer steps to play.
        base_lr: The optimizer's learning rate.

    Example:
        >>> from functools import partial
        >>> simulate(partial(WarmupCosine, warmup_steps=2, total_steps=4), 5)
        [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=base_lr)
    schedule = scheduler(optimizer)
    rates = []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates
