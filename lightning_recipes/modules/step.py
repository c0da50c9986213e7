"""What one step of a recipe returns."""

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["Step", "cross_entropy_step"]


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one batch, in training and in evaluation.

    Attributes:
        loss: Scalar mean over ``count`` items, float32.
        count: How many items the mean is over: samples, or valid tokens. Epoch means weigh by it.
            An int, or a 0-d tensor that stays on its device.
        preds: What the metrics are updated with, e.g. logits (B, C); None leaves them alone.
        target: The truth that belongs to ``preds``.
    """

    loss: Tensor
    count: int | Tensor
    preds: Tensor | None = None
    target: Tensor | None = None


def cross_entropy_step(logits: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Step:
    """Return the step of a classification, with the loss in float32 whatever the precision.

    Args:
        logits: (B, C).
        target: Class indices, int64, (B,).
        label_smoothing: Share of the target spread over all classes.
    """
    loss = F.cross_entropy(logits.float(), target, label_smoothing=label_smoothing)
    return Step(loss, len(target), logits, target)
