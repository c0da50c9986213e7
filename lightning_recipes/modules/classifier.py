"""Classification of inputs of one shape."""

from typing import final

from torch import Tensor

from lightning_recipes.modules.cross_entropy import CrossEntropyModule

__all__ = ["Classifier"]


@final
class Classifier(CrossEntropyModule):
    """Cross-entropy training of a network that maps inputs (B, ...) to logits (B, C).

    Batches are ``(inputs, target)`` with class indices (B,). Logs ``loss`` and ``accuracy`` per
    stage, see :class:`~lightning_recipes.RecipeModule`.

    Args:
        network: The network.
        num_classes: C.
        label_smoothing: Share of the target spread over all classes, in [0, 1).
        optimizer: As in :class:`~lightning_recipes.RecipeModule`.
        weight_by: As in :class:`~lightning_recipes.RecipeModule`.
        lr_scaling: As in :class:`~lightning_recipes.RecipeModule`.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, C)."""
        logits: Tensor = self.network(inputs)
        return logits
