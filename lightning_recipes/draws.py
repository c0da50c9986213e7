"""Whether anything was drawn from the host's global generators."""

import torch

from lightning_recipes.host_generators import numpy_generator, python_generator

__all__ = ["DrawWatch"]


class DrawWatch:
    """Sees whether python's, numpy's or torch's (CPU) generator moves, in about 4 microseconds."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = _look()

    def saw_draws(self) -> bool:
        """Return whether one of them was drawn from or seeded since."""
        python, numpy, words = _look()
        return python is not self._python or numpy is not self._numpy or words != self._torch


def _look() -> tuple[object, object, bytes]:
    words: bytes = torch.get_rng_state().numpy().tobytes()
    return python_generator.state(), numpy_generator.state(), words
