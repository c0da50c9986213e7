"""Whether the weights in a checkpoint are finite."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["nonfinite_weight"]

_WIDE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def nonfinite_weight(weights: Mapping[str, Any]) -> str | None:
    """Return the first weight that is not finite and what is in it; None if all are.

    A buffer may hold infinities: a mask, or the extremes that something starts from. A file does
    not say which tensors are buffers, so a tensor of infinities and zeros alone counts as one.

    Args:
        weights: A state dict; what is not a tensor of numbers is passed over.
    """
    for name, value in weights.items():
        if isinstance(value, Tensor) and (found := _nonfinite(value)):
            return f"{found} in {name}"
    return None


def _nonfinite(tensor: Tensor) -> str | None:
    if tensor.is_quantized or tensor.is_meta:
        return None
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce() if tensor.layout == torch.sparse_coo else tensor
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return None
    if tensor.dtype not in _WIDE:
        tensor = tensor.float()  # the narrowest formats have no arithmetic
    low, high = (value.item() for value in tensor.aminmax())
    if math.isnan(low) or math.isnan(high):
        return "NaN"
    if math.isfinite(low) and math.isfinite(high):
        return None
    is_mask = bool((tensor.isinf() | (tensor == 0)).all())
    return None if is_mask else "an infinity"
