"""Positions as rotations."""

import torch
from torch import Tensor

__all__ = ["rotate"]


def rotate(features: Tensor, positions: Tensor, *, base: float = 10_000.0) -> Tensor:
    """Turn pairs of features by angles that grow with the position.

    The scalar product of two vectors turned like this depends on the distance of their positions
    only, and lengths stay. Feature ``i`` makes a pair with feature ``i + D / 2``, and turns by
    ``base ** (-2 i / D)`` per step.

    Source:
        J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
        https://arxiv.org/abs/2104.09864.

    Args:
        features: Shape (B, H, T, D), D even: queries or keys of H heads.
        positions: Shape (B, T).
        base: How slowly the slowest pair turns.

    Returns:
        Shape (B, H, T, D), of the dtype of ``features``.
    """
    half = features.shape[-1] // 2
    # Angles need float32 at least: bfloat16 cannot tell position 257 from 256.
    dtype = torch.promote_types(features.dtype, torch.float32)
    steps = torch.arange(half, device=features.device, dtype=dtype)
    angles = positions[:, None, :, None].to(dtype) * base ** (-steps / half)
    cos, sin = angles.cos(), angles.sin()
    left, right = features.to(dtype).chunk(2, dim=-1)
    turned = torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)
    return turned.to(features.dtype)
