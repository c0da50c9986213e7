"""Which parameters decay, and how the learning rate scales with the number of ranks."""

import math
from typing import Any, Literal

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

__all__ = ["LRScaling", "lr_scale", "parameter_groups"]

LRScaling = Literal["none", "sqrt", "linear"]

# The normalisation layers whose weights can have two dimensions; all others have one.
_NORMS = (nn.LayerNorm, nn.RMSNorm)


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Return the trainable parameters in two groups: those that decay, and biases and norms.

    The second group has ``weight_decay`` 0; the first takes the optimizer's. A bias or a norm's
    weight sets a scale, and pulling it to zero regularises nothing. A parameter counts as one of
    those if it has fewer than two dimensions or belongs to a normalisation layer. Shared parameters
    appear once, frozen ones never, and an empty group is left out.

    Source:
        T. He et al., "Bag of Tricks", 2019, https://arxiv.org/abs/1812.01187, section 3.1.

    Raises:
        ValueError: No parameter requires a gradient; or FSDP has joined them to one, which cannot
            be told apart any more.
    """
    norms = {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, _NORMS)
        for parameter in layer.parameters(recurse=False)
    }
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(
            f"{type(module).__name__} has no parameter that requires a gradient: there is nothing "
            "to train. Unfreeze a layer."
        )
    flattened = _flattened_ndims(module)
    is_decayed = [flattened.get(id(p), p.ndim) >= 2 and id(p) not in norms for p in trainable]
    decayed = [p for p, decays in zip(trainable, is_decayed, strict=True) if decays]
    kept = [p for p, decays in zip(trainable, is_decayed, strict=True) if not decays]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def lr_scale(rule: LRScaling, world_size: int) -> float:
    """Return the factor on the learning rate for ``world_size`` ranks of a fixed batch size each.

    Args:
        rule: ``"none"``, ``"sqrt"`` (usual for Adam) or ``"linear"`` (usual for SGD with warmup).
        world_size: Number of ranks.

    Source:
        P. Goyal et al., 2017, https://arxiv.org/abs/1706.02677 (linear); A. Krizhevsky, 2014,
        https://arxiv.org/abs/1404.5997 (square root).

    Raises:
        ValueError: The rule is none of the three.

    Example:
        >>> lr_scale("none", 4), lr_scale("sqrt", 4), lr_scale("linear", 4)
        (1.0, 2.0, 4.0)
    """
    factors = {"none": 1.0, "sqrt": math.sqrt(world_size), "linear": float(world_size)}
    if rule not in factors:
        raise ValueError(f"lr_scaling must be one of {tuple(factors)}, got {rule!r}.")
    return factors[rule]


def _flattened_ndims(module: nn.Module) -> dict[int, int]:
    """Return how many dimensions parameters have of which FSDP shows a flat piece, by identity."""
    ndims: dict[int, int] = {}
    for part in module.modules():
        flat = part._flat_param if isinstance(part, FullyShardedDataParallel) else None
        if flat is None:
            continue
        if flat._params is None:
            raise ValueError(
                "FullyShardedDataParallel(use_orig_params=False) joins all parameters to one, of "
                "which some should decay and some not. Use use_orig_params=True."
            )
        shapes = zip(flat._params, flat._shapes, strict=True)  # private: checked on torch 2.13
        ndims |= {id(parameter): len(shape) for parameter, shape in shapes}
    return ndims
