"""Classification of sequences of different lengths."""

from typing import final

from torch import Tensor

from lightning_recipes.data.padded import Padded
from lightning_recipes.modules.cross_entropy import CrossEntropyModule

__all__ = ["SequenceClassifier"]


@final
class SequenceClassifier(CrossEntropyModule):
    """Cross-entropy training of a network that maps values and a mask to logits (B, C).

    The network is called with the values (B, T, ...) and the boolean mask (B, T), True where real,
    of :class:`~lightning_recipes.Padded` sequences, and gives the padding no say in the logits. A
    sequence of length 0 is a row of the mask without a True: do not divide by its count.
    Batches are ``(sequences, target)`` with class indices (B,); a sequence counts as one item,
    whatever its length. Logs ``loss`` and ``accuracy`` per stage, see
    :class:`~lightning_recipes.RecipeModule`.

    Args:
        network: The network.
        num_classes: C.
        label_smoothing: Share of the target spread over all classes, in [0, 1).
        optimizer: As in :class:`~lightning_recipes.RecipeModule`.
        weight_by: As in :class:`~lightning_recipes.RecipeModule`.
        lr_scaling: As in :class:`~lightning_recipes.RecipeModule`.
    """

    def forward(self, inputs: Padded) -> Tensor:
        """Return the logits (B, C)."""
        logits: Tensor = self.network(inputs.values, inputs.mask)
        return logits
