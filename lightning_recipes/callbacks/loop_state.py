"""The one room that touches Lightning's private loop state, checked on lightning 2.6.6.

``tests/callbacks/test_loop_state.py`` fails with a readable message when Lightning moves any of it.
"""

from typing import Any

from lightning.pytorch import Trainer

__all__ = [
    "finish_restart",
    "get_batches_that_stepped",
    "move_counters_between_batches",
]


def move_counters_between_batches(checkpoint: dict[str, Any]) -> None:
    """Let a checkpoint made at ``on_train_batch_start`` say that its batch has not begun.

    By then Lightning has counted the batch as ``ready``. Left like that, a resumed run believes it
    was interrupted in the middle of a batch, and with ``check_val_every_n_epoch=None`` validates
    one batch early. ``is_last_batch``, likewise, is about the batch in hand.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counters in (progress["total"], progress["current"]):
        counters["ready"] = counters["started"] = counters["processed"] = counters["completed"]
    progress["is_last_batch"] = False


def get_batches_that_stepped(trainer: Trainer) -> int:
    """Return the step that Lightning logs under; ``global_step`` differs with many optimizers."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def finish_restart(trainer: Trainer, *, batches_that_stepped: int) -> None:
    """Tell Lightning, at the first batch after a resume, that nothing is left to restart.

    It would believe so to the end of the epoch, and step no epoch-wise scheduler there. And on its
    way here it may have counted a step more than was taken, which would shift all logged rows.
    """
    # Not the public setter: with max_steps it answers True to whatever it is given.
    trainer.fit_loop._restarting = False
    trainer.fit_loop.epoch_loop._batches_that_stepped = batches_that_stepped
