"""What one step of a recipe returns."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["Step", "cross_entropy_step"]


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one batch, in training and in evaluation.

    Attributes:
        loss: Scalar mean over ``count`` items, float32 (or float64): with 8 or 11 bits of mantissa
            a mean of a thousand items is off in the third digit.
        count: How many items the mean is over: samples, or valid tokens. Epoch means weigh by it.
            An int, or a 0-d tensor that stays on its device.
        preds: What the metrics are updated with, e.g. logits (B, C); None leaves them alone.
        target: The truth that belongs to ``preds``.

    Raises:
        ValueError: The loss is float16 or bfloat16.
    """

    loss: Tensor
    count: int | Tensor
    preds: Tensor | None = None
    target: Tensor | None = None

    def __post_init__(self) -> None:
        if self.loss.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"A loss is computed in float32, got {self.loss.dtype}: compute it from "
                "preds.float(), outside autocast if it has its own matrix products."
            )


def cross_entropy_step(logits: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Step:
    """Return the step of a classification, with the loss in float32 whatever the precision.

    Args:
        logits: (B, C).
        target: Class indices, int64, (B,).
        label_smoothing: Share of the target spread over all classes.
    """
    with torch.autocast(logits.device.type, enabled=False):
        loss = F.cross_entropy(logits.float(), target, label_smoothing=label_smoothing)
    return Step(loss, len(target), logits, target)
