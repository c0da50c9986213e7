"""A small recurrent network for sequences of symbols."""

from typing import final

import torch
from torch import Tensor, nn

from lightning_recipes.networks.pooling import masked_mean

__all__ = ["GRUNet"]


@final
class GRUNet(nn.Module):
    """Classify a sequence of symbols by reading it in both directions, and averaging what was read.

    Maps values (B, T), integers in 1..``num_symbols`` where real, and a boolean mask (B, T), True
    where real, to logits (B, num_classes). It is all the same on which side the padding is, how
    much there is, and what is in it; a row that is all padding has the logits of no features.

    ``pack_padded_sequence`` needs the lengths on the CPU, and so makes the host wait for the device
    at every step. Instead, the real steps of each row are moved to its begin, so that no direction
    reads padding before it has read all that is real; the backward direction reads each row
    reversed within its length. What is read in the padding after that is averaged by nobody. The
    numbers are those of a packed bidirectional ``torch.nn.GRU``; the price is computing the
    padding too, little when batches hold similar lengths.

    Source:
        K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014,
        https://arxiv.org/abs/1406.1078; M. Schuster and K. Paliwal, "Bidirectional Recurrent Neural
        Networks", 1997, https://doi.org/10.1109/78.650093.

    Args:
        num_classes: Number of logits.
        num_symbols: Largest symbol; by default that of bytes plus 1.
        embedding_width: Features of a symbol.
        width: Features of a step, per direction.
        num_layers: Layers, each of which reads in both directions.
        dropout: Share of the features before each layer and the last one dropped while training.

    Raises:
        ValueError: A size is out of range.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_symbols: int = 256,
        embedding_width: int = 32,
        width: int = 64,
        num_layers: int = 1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        for name, size in (("num_symbols", num_symbols), ("num_layers", num_layers)):
            if size < 1:
                raise ValueError(f"{name} must be >= 1, got {size}.")
        self.embedding = nn.Embedding(num_symbols + 1, embedding_width, padding_idx=0)
        widths = [embedding_width, *[2 * width] * (num_layers - 1)]
        self.forwards = nn.ModuleList(nn.GRU(w, width, batch_first=True) for w in widths)
        self.backwards = nn.ModuleList(nn.GRU(w, width, batch_first=True) for w in widths)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the logits."""
        steps = torch.arange(mask.shape[1], device=mask.device)
        lengths = mask.sum(dim=1, keepdim=True)
        is_real = steps < lengths
        # The real steps first, in their order; as numbers, since not every device sorts booleans.
        order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
        symbols = values.long().gather(1, order).masked_fill(~is_real, 0)
        reverse = torch.where(is_real, lengths - 1 - steps, steps)[:, :, None]
        features = self.embedding(symbols)
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            features = self.dropout(features)
            ahead, _ = forwards(features)
            back, _ = backwards(features.take_along_dim(reverse, dim=1))
            features = torch.cat([ahead, back.take_along_dim(reverse, dim=1)], dim=-1)
        logits: Tensor = self.head(self.dropout(masked_mean(features, is_real)))
        return logits
