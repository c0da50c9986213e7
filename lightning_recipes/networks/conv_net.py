"""A small convolutional network."""

from typing import final

from torch import Tensor, nn

__all__ = ["ConvNet"]


@final
class ConvNet(nn.Module):
    """Two convolutional stages and a linear head, for images from 8x8 pixels up.

    Maps images (B, C, H, W) to logits (B, num_classes).

    Args:
        num_classes: Number of logits.
        in_channels: C.
        width: Channels of the first stage; the second has twice as many.
        dropout: Share of the pooled features dropped while training.
    """

    def __init__(
        self, *, num_classes: int, in_channels: int = 1, width: int = 32, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _stage(in_channels, width),
            nn.MaxPool2d(2),
            _stage(width, 2 * width),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(4 * 2 * width, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.layers(images)
        return logits


def _stage(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )
