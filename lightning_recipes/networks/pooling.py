"""Pool sequences without their padding."""

import torch
from torch import Tensor

__all__ = ["masked_mean"]


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of every sequence over its real steps.

    What is in the padding has no say, not even if it is infinite or NaN, and gets a gradient of
    zero. A row without a real step gives zeros. Half precision is summed in float32.

    Args:
        features: Shape (B, T, ...), floating.
        mask: True where a step is real, bool, shape (B, T).

    Returns:
        Shape (B, ...), of the dtype of ``features``.
    """
    padding = ~mask.reshape(*mask.shape, *[1] * (features.ndim - 2))
    # Not a product with the mask: 0 * inf is NaN, in the gradient too.
    real = features.masked_fill(padding, 0)
    total = real.sum(dim=1, dtype=torch.promote_types(features.dtype, torch.float32))
    count = (~padding).sum(dim=1).clamp(min=1)
    return (total / count).to(features.dtype)
