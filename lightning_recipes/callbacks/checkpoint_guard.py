"""What keeps weights that are not finite out of checkpoints."""

import math
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_recipes.callbacks.ranks import gather
from lightning_recipes.gradients import total_norm
from lightning_recipes.nonfinite.error import NonFiniteError
from lightning_recipes.nonfinite.tracer import find_in_weights

__all__ = ["CheckpointGuard", "refuse_nonfinite"]


class CheckpointGuard:
    """Stands before ``trainer.save_checkpoint``, through which every checkpoint goes.

    Not in ``on_save_checkpoint``: Lightning does not call that for a file of weights only. The
    ranks agree before anything is written, except while an exception is handled.

    Attributes:
        last_path: The newest file that was written; None if none was.
        is_in_exception: Whether an exception is being handled, and nobody may be waited for.
    """

    def __init__(self) -> None:
        self.last_path: str | None = None
        self.is_in_exception = False
        self._replaced: Any = None
        self._is_on = False

    def install(
        self, trainer: Trainer, pl_module: LightningModule, *, before: Callable[[], None]
    ) -> None:
        """Let the trainer save nothing that is not finite.

        Args:
            trainer: The trainer.
            pl_module: Its module.
            before: What to do before each look, e.g. to raise an error that says more. Not called
                while an exception is handled.
        """
        self.remove(trainer)  # an exception may have ended the last training, without a teardown
        self.last_path, self.is_in_exception, self._is_on = None, False, True
        self._replaced = vars(trainer).get("save_checkpoint")
        save = trainer.save_checkpoint

        def save_if_finite(filepath: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_on:
                if not self.is_in_exception:
                    before()
                self._check(trainer, pl_module, filepath)
            save(filepath, *args, **kwargs)
            self.last_path = str(filepath)

        save_if_finite.guard = self  # type: ignore[attr-defined]
        trainer.save_checkpoint = save_if_finite  # type: ignore[method-assign]

    def remove(self, trainer: Trainer) -> None:
        """Let it save as before."""
        self._is_on = False
        if getattr(vars(trainer).get("save_checkpoint"), "guard", None) is not self:
            return  # somebody stands before this one, and would be sent away, too
        del trainer.save_checkpoint
        if self._replaced is not None:
            trainer.save_checkpoint = self._replaced  # type: ignore[method-assign]
        self._replaced = None

    def _check(self, trainer: Trainer, pl_module: LightningModule, filepath: Any) -> None:
        newest = f"Newest file of this run: {self.last_path or 'none yet'}."
        refuse_nonfinite(
            trainer, pl_module, f"{filepath} was not written. {newest}", alone=self.is_in_exception
        )


def refuse_nonfinite(
    trainer: Trainer, pl_module: LightningModule, consequence: str, *, alone: bool = False
) -> None:
    """Raise on all ranks if the weights of any are not finite: a collective, unless alone.

    Args:
        trainer: The trainer.
        pl_module: Whose parameters are looked at, and whose buffers for a NaN: -inf can be a mask.
        consequence: What the message says follows.
        alone: Ask no other rank.

    Raises:
        NonFiniteError: They are not.
    """
    # On a CPU torch (2.13) takes 40 times as long for the largest value as for a sum of squares,
    # which can overflow: only then it is asked for, and by all ranks, since for shards they meet.
    for norm_type in (2.0, math.inf):
        is_finite = _is_finite(pl_module, norm_type)
        if all([is_finite] if alone else gather(is_finite)):
            return
    found = "; ".join(map(str, find_in_weights(pl_module))) or "on another rank"
    raise NonFiniteError(
        f"The weights are not finite ({found}), so no older file was replaced, and {consequence}",
        step=trainer.global_step,
        epoch=trainer.current_epoch,
    )


def _is_finite(pl_module: LightningModule, norm_type: float) -> bool:
    norm = total_norm(pl_module.parameters(), norm_type)
    has_nan = any(
        bool(buffer.isnan().any()) for buffer in pl_module.buffers() if buffer.is_floating_point()
    )
    return math.isfinite(float(norm)) and not has_nan
