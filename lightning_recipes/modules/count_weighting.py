"""The gradient of the mean over all items of an optimizer step, whatever batch they came in."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_recipes.gradients import scale_gradients
from lightning_recipes.modules.step import Step
from lightning_recipes.step_norm import optimized_parameters

__all__ = ["CountWeighting"]


class CountWeighting:
    """Weighs the micro-batches of all ranks by their counts.

    A mean of means is not the mean: where micro-batches and ranks have different numbers of tokens,
    averaging their gradients gives a token of a short batch more weight. So sums are
    back-propagated, and the gradients divided once by the number of items that all ranks have had
    in the accumulation window: one scalar all-reduce and one foreach kernel for each step.

    The sums are divided by a constant of the size of a usual count, for float16's sake: the power
    of two next to the first batch's. Dividing by that and multiplying again is exact, so that a
    resumed run, whose first batch is another one, still has the same bits.
    """

    def __init__(self) -> None:
        self._counts: list[Tensor] = []
        self._usual_count: Tensor | None = None

    def start(self) -> None:
        """Begin a training."""
        self._counts, self._usual_count = [], None

    def loss(self, trainer: Trainer, step: Step, batch_idx: int) -> Tensor:
        """Return what to back-propagate for a micro-batch, and count it.

        Args:
            trainer: The trainer.
            step: The mean loss of the micro-batch, and its count; 0 gives it no weight.
            batch_idx: Its number in the epoch.
        """
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._counts = []
        count = torch.as_tensor(step.count, dtype=torch.float32, device=step.loss.device)
        self._counts.append(count)
        if self._usual_count is None:
            mean = trainer.strategy.reduce(count.clone(), reduce_op="mean").clamp(min=1)
            self._usual_count = torch.exp2(torch.log2(mean).round())
        # A batch without any item has no mean, and its NaN would not be stopped by a factor of 0.
        loss = torch.where(count > 0, step.loss, torch.zeros_like(step.loss))
        return loss * (count / self._usual_count)

    def rescale(self, trainer: Trainer, optimizer: Optimizer) -> None:
        """Make the window's gradients those of the mean over its items: a collective.

        Undoes that Lightning divides by the length of the window, and DDP by the number of ranks.
        """
        assert self._usual_count is not None
        total = trainer.strategy.reduce(torch.stack(self._counts).sum(), reduce_op="sum")
        divided_by = self._usual_count * (trainer.accumulate_grad_batches * trainer.world_size)
        scale_gradients(optimized_parameters(optimizer), divided_by / total.clamp(min=1))
