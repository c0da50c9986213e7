"""A small Transformer encoder for sequences of symbols."""

from typing import final

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lightning_recipes.networks.pooling import masked_mean
from lightning_recipes.networks.rotary import rotate

__all__ = ["TransformerNet"]


@final
class TransformerNet(nn.Module):
    """Classify a sequence of symbols by attention: embed, encode, average what is real.

    Maps values (B, T), integers in 1..``num_symbols`` where real, and a boolean mask (B, T), True
    where real, to logits (B, num_classes). Blocks normalise first (pre-norm); positions are rotary
    and count the real steps, so it is all the same on which side the padding is, how much there
    is, and what is in it. A sequence is classified the same in any company.

    About masks: ours, and that of ``scaled_dot_product_attention``, is True where a step takes
    part; ``key_padding_mask`` of ``torch.nn.MultiheadAttention`` is True where it is *ignored*. A
    row that is all padding attends to its padding instead of to nothing, since a softmax over
    nothing is NaN; the average then leaves all of it out, so the logits are those of no features,
    and finite, and the gradient of the row reaches the last layer's bias only.

    Source:
        A. Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762;
        R. Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020,
        https://arxiv.org/abs/2002.04745.

    Args:
        num_classes: Number of logits.
        num_symbols: Largest symbol; by default that of bytes plus 1.
        width: Features per step.
        num_layers: Blocks.
        num_heads: Attention heads; ``width / num_heads`` is an even number.
        dropout: Share of what each block adds, of its attention and of the pooled features dropped
            while training.

    Raises:
        ValueError: A size is out of range.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_symbols: int = 256,
        width: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        for name, size in (
            ("num_symbols", num_symbols),
            ("num_layers", num_layers),
            ("num_heads", num_heads),
        ):
            if size < 1:
                raise ValueError(f"{name} must be >= 1, got {size}.")
        if width < 1 or width % (2 * num_heads):
            raise ValueError(
                "width is a multiple of 2 * num_heads, since positions turn pairs of features; got "
                f"{width} for {num_heads} heads."
            )
        self.embedding = nn.Embedding(num_symbols + 1, width, padding_idx=0)
        self.blocks = nn.ModuleList(_Block(width, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, num_classes))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the logits."""
        features = self.embedding(values.long().masked_fill(~mask, 0))
        positions = mask.cumsum(dim=1) - 1
        takes_part = (mask | ~mask.any(dim=1, keepdim=True))[:, None, None, :]
        for block in self.blocks:
            features = block(features, positions, takes_part)
        logits: Tensor = self.head(masked_mean(self.norm(features), mask))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, features: Tensor, positions: Tensor, takes_part: Tensor) -> Tensor:
        features = features + self.dropout(self._attend(features, positions, takes_part))
        added: Tensor = self.dropout(self.mlp(features))
        return features + added

    def _attend(self, features: Tensor, positions: Tensor, takes_part: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(features)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            rotate(query, positions),
            rotate(key, positions),
            value,
            attn_mask=takes_part,
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out
