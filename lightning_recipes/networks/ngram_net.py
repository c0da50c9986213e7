"""A bag of hashed n-grams for short sequences."""

from typing import final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["NgramNet"]

# An odd 64-bit multiplier (the golden ratio's), as a signed number; int64 wraps around on overflow.
_MULTIPLIER = -7046029254386353131


@final
class NgramNet(nn.Module):
    """Classify a sequence of symbols by the n-grams in it.

    Every n-gram, with the begin and the end of the sequence as symbols of their own, is hashed to a
    row of one embedding table; the rows are summed, normalised and classified. Training drops
    single n-grams as well as features. Maps values (B, T), positive integers where real, and a
    boolean mask (B, T), True where real, to logits (B, num_classes). More padding changes
    nothing; a sequence of length 0 has the features 0.

    Source:
        A. Joulin et al., "Bag of Tricks for Efficient Text Classification", 2016,
        https://arxiv.org/abs/1607.01759.

    Args:
        num_classes: Number of logits.
        max_ngram: Longest n-gram, in symbols.
        num_buckets: Rows of the table.
        width: Columns of the table.
        ngram_dropout: Share of the n-grams dropped while training.
        dropout: Share of the features dropped while training.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        max_ngram: int = 5,
        num_buckets: int = 32_768,
        width: int = 64,
        ngram_dropout: float = 0.3,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        for name, size in (("max_ngram", max_ngram), ("num_buckets", num_buckets)):
            if size < 1:
                raise ValueError(f"{name} must be >= 1, got {size}.")
        self.max_ngram = max_ngram
        self.num_buckets = num_buckets
        self.table = nn.Parameter(torch.empty(num_buckets, width).normal_(std=0.1))
        self.ngram_dropout = nn.Dropout(ngram_dropout)
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, num_classes)
        )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the logits."""
        # Zero stands for padding, so the zero next to a real symbol marks the begin or the end.
        symbols = F.pad(values.long().masked_fill(~mask, 0), (1, 1))
        sizes = range(1, min(self.max_ngram, symbols.shape[1]) + 1)
        rows, valid = zip(*(self._ngrams(symbols, n) for n in sizes), strict=True)
        present = torch.cat(valid, dim=1).to(self.table.dtype)
        num_present = present.sum(dim=1, keepdim=True).clamp(min=1)  # an empty sequence has none
        weights = self.ngram_dropout(present) / num_present.sqrt()
        features = F.embedding_bag(
            torch.cat(rows, dim=1), self.table, mode="sum", per_sample_weights=weights
        )
        logits: Tensor = self.head(features)
        return logits

    def _ngrams(self, symbols: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return the rows of all n-grams and which of them belong to the sequence, both (B, N)."""
        grams = symbols.unfold(1, n, 1)
        is_real = grams != 0
        valid = is_real[..., 1:-1].all(dim=-1) & is_real.any(dim=-1)
        code = torch.full_like(grams[..., 0], n)
        for i in range(n):
            code = code * _MULTIPLIER + grams[..., i]
        return (code ^ (code >> 32)) % self.num_buckets, valid
