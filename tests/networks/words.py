"""Words in every kind of padding."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

WORDS = [[5, 6, 7, 8], [9], [250, 2, 2], [40, 41, 40, 41, 42, 43]]


def pad(
    words: list[list[int]], *, left: int = 0, right: int = 0, side: str = "right", fill: int = 77
) -> tuple[Tensor, Tensor]:
    """Return values and mask; ``left`` and ``right`` are steps of padding that all rows get."""
    longest = max(map(len, words))
    values, mask = [], []
    for word in words:
        more = longest - len(word)
        padding = (left + more, right) if side == "left" else (left, right + more)
        values.append(F.pad(torch.tensor(word, dtype=torch.int64), padding, value=fill))
        mask.append(F.pad(torch.ones(len(word), dtype=torch.bool), padding))
    return torch.stack(values), torch.stack(mask)
