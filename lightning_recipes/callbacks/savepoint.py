"""The way back to before some batches."""

from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_recipes.callbacks import metric_state

__all__ = ["Savepoint"]

_layout = attrgetter("shape", "dtype", "device")


class Savepoint:
    """What batches change in a module besides its gradients: buffers, metrics and running means.

    Made once, marked often: a mark copies the buffers (one foreach kernel) and the small states of
    torchmetrics, and waits for nothing.

    Args:
        pl_module: The module.
        with_metrics: Whether to keep metrics and running means, too.
    """

    def __init__(self, pl_module: LightningModule, *, with_metrics: bool = True) -> None:
        self._places = [
            (module, name) for module in pl_module.modules() for name in module._buffers
        ]
        self._buffers: list[Tensor | None] = []
        self._saved_buffers: list[Tensor] = []
        self._saved_layouts: list[Any] = []
        self._with_metrics = with_metrics
        self._metrics = [metric for _, metric in metric_state.metric_objects(pl_module)]
        self._mark: dict[str, Any] = {}
        self._is_new_epoch = False

    def mark(self, trainer: Trainer, *, is_new_epoch: bool = False) -> None:
        """Remember this moment, and no earlier one.

        Args:
            trainer: The trainer.
            is_new_epoch: Whether the first batch of an epoch is about to begin.
        """
        if self._places:
            self._mark_buffers()
        if self._with_metrics:
            self._mark = metric_state.mark_metrics(trainer, self._metrics)
            self._is_new_epoch = is_new_epoch

    def roll_back(self, trainer: Trainer) -> None:
        """Make everything what it was at the mark."""
        self.roll_back_buffers()
        if self._with_metrics:
            metric_state.roll_back_metrics(
                trainer, self._metrics, self._mark, is_new_epoch=self._is_new_epoch
            )

    @torch.no_grad()
    def roll_back_buffers(self) -> None:
        """Make the buffers what they were at the mark."""
        if self._saved_buffers:
            torch._foreach_copy_(self._present(), self._saved_buffers)
        for (module, name), buffer in zip(self._places, self._buffers, strict=True):
            if module._buffers[name] is not buffer:
                module._buffers[name] = buffer

    @torch.no_grad()
    def _mark_buffers(self) -> None:
        # By name: many a module does not change a buffer but replaces it.
        self._buffers = [module._buffers[name] for module, name in self._places]
        buffers = self._present()
        layouts = list(map(_layout, buffers))
        if layouts != self._saved_layouts:
            self._saved_buffers = [torch.empty_like(buffer) for buffer in buffers]
            self._saved_layouts = layouts
        if buffers:
            torch._foreach_copy_(self._saved_buffers, buffers)

    def _present(self) -> list[Tensor]:
        return [buffer for buffer in self._buffers if buffer is not None]
