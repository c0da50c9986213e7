"""The micro-batches of an optimizer step, as long as they may still be asked for."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lightning_recipes.rng import RNGSnapshot

__all__ = ["MicroBatch", "Window", "is_bad_loss"]


_NUM_WATCHED = 10


@dataclass(frozen=True)
class MicroBatch:
    """One batch that adds to the gradients of a step.

    Attributes:
        batch: As ``training_step`` gets it; references.
        batch_idx: Its number in the epoch.
        rng: The random state at its start.
        losses: Those whose backward pass it began, detached.
    """

    batch: Any
    batch_idx: int
    rng: RNGSnapshot
    losses: list[Tensor] = field(default_factory=list)

    def is_loss_finite(self, *, is_scaled: bool = False) -> bool:
        """Return whether its losses are; waits for the device."""
        return not any(bool(is_bad_loss(loss, is_scaled=is_scaled).any()) for loss in self.losses)


def is_bad_loss(loss: Tensor, *, is_scaled: bool) -> Tensor:
    """Return where a loss is not finite.

    Args:
        loss: The loss.
        is_scaled: Whether it was multiplied by a loss scale: in float16 that overflows just as a
            gradient does, and tells nothing about the loss.
    """
    if is_scaled and loss.dtype == torch.float16:
        return torch.isnan(loss)
    return ~torch.isfinite(loss)


class Window:
    """The micro-batches since the last optimizer step, in their order.

    They stay in memory until their step: references, no copies. Only the dicts and lists around the
    tensors are copied, since a training step may take something out of its batch.
    """

    def __init__(self) -> None:
        self.micro_batches: list[MicroBatch] = []
        self._num_watched = 0
        self._takes_python_and_numpy = True

    def add(self, batch: Any, batch_idx: int) -> None:
        """Begin a micro-batch."""
        batch = tree_map(lambda leaf: leaf, batch)
        rng = RNGSnapshot.take(python_and_numpy=self._takes_python_and_numpy)
        self.micro_batches.append(MicroBatch(batch, batch_idx, rng))

    def close(self) -> None:
        """Learn, after the last backward pass, which generators a training step draws from.

        Where the first ten leave python's and numpy's alone, their states are not taken any more:
        at the end of a window they are still those of its start. A step that begins to draw from
        them later is run again with other draws.
        """
        if self._num_watched < _NUM_WATCHED and self.micro_batches:
            self._num_watched += 1
            is_last = self._num_watched == _NUM_WATCHED
            if self.micro_batches[-1].rng.has_moved():
                self._num_watched = _NUM_WATCHED
            elif is_last:
                self._takes_python_and_numpy = False

    def note_loss(self, loss: Tensor) -> None:
        """Keep a loss, detached, of the micro-batch in hand."""
        if self.micro_batches:
            self.micro_batches[-1].losses.append(loss)

    def clear(self) -> None:
        """Let go of all of them."""
        self.micro_batches.clear()
