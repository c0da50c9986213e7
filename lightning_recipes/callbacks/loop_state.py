"""The room that touches private state of Lightning's loops and of ModelCheckpoint.

Checked on lightning 2.6.6; ``tests/callbacks/test_loop_state.py`` fails with a readable message
when any of it moves.
"""

from collections.abc import Callable
from typing import Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn

__all__ = [
    "around_signal_handlers",
    "before_each_fetch",
    "begin_at_next_batch",
    "begin_epoch_of_callbacks",
    "begin_with_validation",
    "capture_keepers",
    "cluster_environment",
    "drop_loader_states",
    "drop_sigterm_broadcast",
    "fetches_ahead",
    "finish_restart",
    "is_validation_due",
    "move_counters_between_batches",
    "num_logged_steps",
    "rebuild_train_iterator",
    "restore_keepers",
    "restore_sigterm_broadcast",
    "step_plateau_schedulers",
    "writes_folders",
]


def around_signal_handlers(
    trainer: Trainer, before: Callable[[], None], after: Callable[[], None]
) -> None:
    """Run ``before`` and ``after`` when Lightning registers its signal handlers for a fit.

    It does so between two hooks, between which a loader can take its time, and its handler of
    SIGTERM broadcasts: a signal to one rank would wait there for the others. What it finds at that
    moment it puts back when the fit ends, be it by an exception.
    """
    connector = trainer._signal_connector

    def register() -> None:
        connector.__dict__.pop("register_signal_handlers", None)
        is_fit = trainer.state.fn == TrainerFn.FITTING
        if is_fit:
            before()
        connector.register_signal_handlers()
        if is_fit:
            after()

    connector.register_signal_handlers = register  # type: ignore[method-assign]


def before_each_fetch(trainer: Trainer, action: Callable[[], None]) -> None:
    """Run ``action`` before each train batch is fetched, and moved to the device with its hooks.

    No hook comes that early: at ``on_train_batch_start`` the batch has been drawn and augmented.
    Lightning calls the loop's ``_on_before_fetch`` there, for its profiler.
    """
    loop = trainer.fit_loop.epoch_loop

    def act_and_profile() -> None:
        action()
        type(loop)._on_before_fetch(loop)

    loop._on_before_fetch = act_and_profile  # type: ignore[method-assign]


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


def drop_loader_states(checkpoint: dict[str, Any]) -> None:
    """Keep Lightning from restoring the train loaders: it has rank 0's state for every rank.

    It also restores them at a moment at which a loader's error could not be answered any more.
    """
    checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)


def num_logged_steps(checkpoint: dict[str, Any]) -> int:
    """Return at which step Lightning logs next after a resume: everything before is logged."""
    state = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
    return int(state["_batches_that_stepped"])


def drop_sigterm_broadcast(trainer: Trainer) -> None:
    """Spare each batch the question whether rank 0 got a SIGTERM, where its handler is not on.

    Lightning broadcasts the answer from the device and waits for it there.
    """
    loop = trainer.fit_loop.epoch_loop
    loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def restore_sigterm_broadcast(trainer: Trainer) -> None:
    """Let Lightning ask again."""
    trainer.fit_loop.epoch_loop.__dict__.pop("_broadcast_sigterm_tensor", None)


def begin_at_next_batch(trainer: Trainer) -> None:
    """Let a run that was saved between batches begin with its next batch, and nothing before.

    Where the last batch was followed by a validation, Lightning first goes through the end of that
    batch once more, without the validation: it steps a plateau scheduler and counts a step again.
    It does so as long as the loop is restarting, which its ``reset`` has to see; so this ends right
    after that.
    """

    def finish(loop: _TrainingEpochLoop) -> None:
        loop._restarting = False

    _after_next_reset(trainer, finish)


def begin_with_validation(trainer: Trainer) -> None:
    """Let a run that was saved at the end of a batch begin with the validation due there.

    Lightning skips it, unless it takes the run for one that was stopped inside a validation.
    """
    batches_that_stepped = trainer.fit_loop.epoch_loop._batches_that_stepped

    def pretend(loop: _TrainingEpochLoop) -> None:
        loop.val_loop.restarting = False  # from its first batch on
        loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION
        loop._batches_that_stepped = batches_that_stepped  # counted after the validation

    _after_next_reset(trainer, pretend)


def begin_epoch_of_callbacks(trainer: Trainer, pl_module: LightningModule) -> None:
    """Let Lightning's own callbacks prepare the epoch that a run goes on with.

    ``on_train_epoch_start`` is not called again inside an epoch, and there they set on the trainer
    what no checkpoint holds: how many batches to accumulate, the scheduler of the weight averaging
    and its last epoch, in which nothing is trained. The averaging also begins its annealing of the
    learning rates there, which are put back. After ``on_train_start``, which some check.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    reset = loop.reset

    def begin_and_reset() -> None:
        loop.__dict__.pop("reset", None)
        if fit_loop.restarted_mid_epoch or fit_loop.restarted_on_epoch_end:
            begin()
        reset()

    def begin() -> None:
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for callback in callbacks:
            if isinstance(callback, GradientAccumulationScheduler | StochasticWeightAveraging):
                callback.on_train_epoch_start(trainer, pl_module)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    loop.reset = begin_and_reset  # type: ignore[method-assign]


def _after_next_reset(trainer: Trainer, action: Callable[[_TrainingEpochLoop], None]) -> None:
    loop = trainer.fit_loop.epoch_loop

    def reset_and_act() -> None:
        loop.__dict__.pop("reset", None)
        loop.reset()
        action(loop)

    loop.reset = reset_and_act  # type: ignore[method-assign]


def finish_restart(trainer: Trainer) -> None:
    """Tell Lightning, at the first batch after a resume, that nothing is left to restart.

    It would believe so to the end of the epoch, and step no epoch-wise scheduler there.
    """
    # Not the public setter: with max_steps it answers True to whatever it is given.
    trainer.fit_loop._restarting = False


def is_validation_due(trainer: Trainer) -> bool:
    """Return, at the end of a batch, whether a validation follows."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def step_plateau_schedulers(trainer: Trainer) -> None:
    """Do what Lightning does after a batch and after its validation: it is lost on a resume."""
    trainer.fit_loop.epoch_loop.update_lr_schedulers("step", update_plateau_schedulers=True)


def cluster_environment(trainer: Trainer) -> ClusterEnvironment | None:
    """Return the environment that Lightning asks whether to requeue; only some strategies say."""
    return trainer._accelerator_connector.cluster_environment


def writes_folders(trainer: Trainer) -> bool:
    """Return whether a checkpoint is a folder that all ranks write together."""
    strategy = trainer.strategy
    if isinstance(strategy, ModelParallelStrategy):
        return strategy._save_distributed_checkpoint
    if isinstance(strategy, FSDPStrategy):
        return strategy._state_dict_type == "sharded"
    return isinstance(strategy, DeepSpeedStrategy)


def fetches_ahead(trainer: Trainer) -> bool:
    """Return whether Lightning holds a batch more than the one in hand: it looks for the end so."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and fetcher.length is None and hasattr(fetcher, "prefetch_batches")


def rebuild_train_iterator(trainer: Trainer) -> None:
    """Throw away what Lightning fetched, or a loader began, before a position was loaded."""
    assert trainer.fit_loop._data_fetcher is not None
    iter(trainer.fit_loop._data_fetcher)


def capture_keepers(trainer: Trainer) -> dict[str, int]:
    """Return the step at which each ModelCheckpoint saved last, which it does not save itself.

    It writes nothing twice at one step, e.g. at two validations inside an accumulation window.
    """
    return {keeper.state_key: keeper._last_global_step_saved for keeper in _keepers(trainer)}


def restore_keepers(trainer: Trainer, saved: dict[str, int]) -> None:
    """Let each ModelCheckpoint know when it saved last."""
    for keeper in _keepers(trainer):
        if keeper.state_key in saved:
            keeper._last_global_step_saved = saved[keeper.state_key]


def _keepers(trainer: Trainer) -> list[ModelCheckpoint]:
    return [
        keeper for keeper in trainer.checkpoint_callbacks if isinstance(keeper, ModelCheckpoint)
    ]
