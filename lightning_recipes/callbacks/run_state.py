"""What a run is besides what Lightning saves, rank by rank."""

from functools import reduce
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_recipes.callbacks import loop_state, metric_state
from lightning_recipes.callbacks.loader_state import TrainLoaders
from lightning_recipes.callbacks.module_modes import capture_modes, restore_modes
from lightning_recipes.callbacks.ranks import (
    capture_own_buffers,
    gather,
    restore_own_buffers,
    stream_rank,
)
from lightning_recipes.rng import (
    capture_rng_state,
    derive_seed,
    restore_rng_state,
    seed_host_generators,
)

__all__ = ["KEY", "RunState", "logger_versions"]

KEY = "lightning_recipes.ResumeCheckpoint"
"""Where a checkpoint holds the state of the run."""

_VERSION = 1


class RunState:
    """Random states, positions of the data, running means and seen metrics, of all ranks.

    Args:
        seed: Of the ranks' random streams; None for that of torch's generator.
        nearest: Whether a run with another global batch size goes on at the nearest sample.
    """

    def __init__(self, *, seed: int | None, nearest: bool) -> None:
        self.seed = seed
        self.nearest = nearest
        self.loaders = TrainLoaders()
        self._loaded: dict[str, Any] | None = None
        self._waiting_means: metric_state.RunningMeans = {}
        self._is_rng_restored = False
        self._rng_before_fetch: dict[str, Any] | None = None

    def capture(
        self, trainer: Trainer, pl_module: LightningModule, *, moment: str
    ) -> dict[str, Any]:
        """Return the state of all ranks, on all ranks: a collective.

        Args:
            trainer: While it writes a checkpoint.
            pl_module: Its module.
            moment: "between batches", or the event in which it is written.
        """
        is_between_batches = moment == "between batches"
        is_in_event = moment in ("batch end", "validation end", "epoch end")
        ends_epoch = is_in_event and trainer.is_last_batch
        metrics = metric_state.capture_metrics(trainer, pl_module)
        means = {**metric_state.capture_running_means(trainer), **self._waiting_means}
        if ends_epoch:
            # A resumed run begins with the next epoch, where these would be too much.
            means, metrics = {}, {**metrics, "objects": {}}
        mine = {
            "rng": (is_between_batches and self._rng_before_fetch) or capture_rng_state(),
            "loaders": self.loaders.before_next_batch(trainer),
            "buffers": capture_own_buffers(trainer, pl_module),
            "means": means,
            "metrics": metrics,
        }
        return {
            "version": _VERSION,
            "moment": moment,
            "ends_epoch": ends_epoch,
            "is_validation_due": moment == "batch end" and loop_state.is_validation_due(trainer),
            "loggers": {type(logger).__name__: logger.version for logger in trainer.loggers},
            "keepers": loop_state.capture_keepers(trainer),
            "modes": capture_modes(pl_module) if is_between_batches else None,
            "ranks": gather(mine),
        }

    def is_known(self, trainer: Trainer) -> bool:
        """Return whether the state could be captured now; the same on all ranks."""
        return self.loaders.before_next_batch(trainer) is not None

    def load(self, state: dict[str, Any]) -> None:
        """Keep a captured state until the moments at which its parts are needed."""
        if state["version"] != _VERSION:
            raise ValueError(
                f"The checkpoint's resume state has version {state['version']}, this version of "
                f"lightning_recipes reads {_VERSION}. Resume with the version that wrote it."
            )
        if state["ends_epoch"]:
            rank_zero_warn(
                f"The checkpoint was written at the {state['moment']} of an epoch's last batch. "
                "Lightning goes on with the next epoch: what was left of that one (a validation "
                "due, its end with hooks, means and schedulers) is not done. Resume from a file of "
                "ResumeCheckpoint to have it."
            )
        self._loaded = state

    def start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """At the start of training: go to the saved position, or give the rank its own stream."""
        if self._loaded is None:
            self._seed_rank(trainer)
        else:
            ranks = self._loaded["ranks"]
            is_same_world = len(ranks) == trainer.world_size
            mine = ranks[trainer.global_rank] if is_same_world else ranks[0]
            restore_own_buffers(trainer, pl_module, mine["buffers"])
            if self._loaded["modes"] is not None:
                restore_modes(pl_module, self._loaded["modes"])
            loop_state.restore_keepers(trainer, self._loaded["keepers"])
            metric_state.restore_seen_metrics(trainer, mine["metrics"])
            self._catch_up(trainer)
            loop_state.begin_epoch_of_callbacks(trainer, pl_module)
            if mine["loaders"] is not None:
                self.loaders.restore(
                    trainer, mine["loaders"], is_same_world=is_same_world, nearest=self.nearest
                )
        self.loaders.start(trainer)

    def before_fetch(self, trainer: Trainer, *, is_save_near: bool) -> None:
        """Before a batch is fetched: what draws there is still to come.

        The augmentation of a loader in the main process, and of ``on_after_batch_transfer``, comes
        before the batch starts. So this is where the random state is restored, and noted for a
        save at the start of that batch.
        """
        if self._loaded is not None and not self._is_rng_restored:
            self._restore_rng(trainer, self._loaded["ranks"])
            self._is_rng_restored = True
        self._rng_before_fetch = capture_rng_state() if is_save_near else None

    def restore(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """At the start of the first batch: restore the rest; return whether there was any."""
        if self._loaded is None:
            return False
        state, self._loaded = self._loaded, None
        ranks, rank, world_size = state["ranks"], trainer.global_rank, trainer.world_size
        # With fewer ranks than before, each takes over what several had gathered.
        mine = ranks[rank::world_size]
        loop_state.finish_restart(trainer)
        metric_state.restore_metrics(pl_module, [part["metrics"] for part in mine])
        means = (part["means"] for part in mine)
        self._waiting_means = reduce(metric_state.combine_running_means, means, {})
        if not self._is_rng_restored:
            self._restore_rng(trainer, ranks)
        self._is_rng_restored = False
        self._rng_before_fetch = None
        return True

    def _catch_up(self, trainer: Trainer) -> None:
        assert self._loaded is not None
        if self._loaded["moment"] == "between batches":
            loop_state.begin_at_next_batch(trainer)
        elif self._loaded["moment"] == "batch end" and not self._loaded["ends_epoch"]:
            if self._loaded["is_validation_due"]:
                loop_state.begin_with_validation(trainer)
                self._restore_rng(trainer, self._loaded["ranks"])
                self._is_rng_restored = True
            else:
                loop_state.step_plateau_schedulers(trainer)

    def _restore_rng(self, trainer: Trainer, ranks: list[dict[str, Any]]) -> None:
        if len(ranks) == trainer.world_size:
            restore_rng_state(ranks[trainer.global_rank]["rng"])
        else:
            rank_zero_warn(
                f"The run was saved with {len(ranks)} ranks and goes on with {trainer.world_size}. "
                "The same samples follow, with the same augmentations; not bit for bit the same "
                "are what is drawn in the model (dropout, noise), and sums in another order."
            )
            self._seed_rank(trainer)

    def add_waiting_means(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After a batch, or at the end of the epoch: add what was gathered before the resume."""
        if self._waiting_means:
            rest = metric_state.add_running_means(trainer, self._waiting_means)
            metric_state.log_running_means(trainer, pl_module, rest)
            self._waiting_means = {k: v for k, v in rest.items() if not v["can_log"]}

    def end_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the means of the epoch are read."""
        self.add_waiting_means(trainer, pl_module)
        self._waiting_means = {}

    def _seed_rank(self, trainer: Trainer) -> None:
        base = torch.initial_seed() if self.seed is None else self.seed
        seed = derive_seed(base, trainer.global_step, stream_rank(trainer))
        torch.manual_seed(seed)  # of every device, too
        seed_host_generators(seed)


def logger_versions(checkpoint: dict[str, Any]) -> dict[str, int | str]:
    """Return the version of each kind of logger of the run, none if the checkpoint has no such."""
    state = checkpoint.get(KEY) or {}
    versions: dict[str, int | str] = state.get("loggers", {})
    return versions
