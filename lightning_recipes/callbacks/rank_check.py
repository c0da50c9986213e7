"""Do the ranks of a run agree on what they run?"""

import os
from collections.abc import Sequence
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_recipes.callbacks.rank_facts import (
    RankFacts,
    differences,
    facts_of_data,
    facts_of_model,
    node_lines,
)
from lightning_recipes.callbacks.ranks import gather
from lightning_recipes.callbacks.stack_watch import StackWatch

__all__ = ["RankCheck"]

_MOST_DIFFERENCES = 8


class RankCheck(Callback):
    """See at the start of ``fit`` that all ranks are about to run the same thing on different data.

    Ranks that differ do not fail: they wait for each other for half an hour, or train something
    that nobody asked for. With several ranks, this says in a line per machine which ranks and
    devices it has, and refuses on all of them, with the values by rank, what differs:

    ========================= ======================================================================
    when                      what
    ========================= ======================================================================
    before the model is       world size, the trainer's settings, hyper-parameters of module and
    wrapped                   datamodule, names, shapes and dtypes of parameters and buffers
    at the start of training  number of batches of every loader, length of the data sets that a
                              distributed sampler shares out, optimizers and their groups, the
                              weights that every rank has whole; and that the first batches of
                              :class:`~lightning_recipes.ResumableDataLoader` have no sample in
                              common
    ========================= ======================================================================

    It costs two gathers of a few kilobytes and one number for each weight, and nothing afterwards.
    If a rank does not come to the check in ``timeout_s``, e.g. out of ``datamodule.setup``, the
    others say so, and write where each of them stands, to stderr. (A rank that does not even come
    to ``fit`` keeps them in a barrier of Lightning's before.) A single process has nothing to
    compare.

    Not seen: shards of weights, what another loader will fetch, hyper-parameters that are neither
    numbers nor words.

    Args:
        timeout_s: After how many seconds without an answer to write the stacks; the check goes on
            to wait, until the process group gives up.
        ignore: Names, or their beginnings, of what may differ, as the error gives them: e.g.
            ``("datamodule.hparams.folder",)`` where each machine has a disk of its own.
        hang_timeout_s: The same for the whole run: every rank writes its stacks when no batch, of
            training or validation, has ended for so long, once each time. Longer than the slowest
            save and the start of the workers. None for never.

    Raises:
        ValueError: An argument is out of range.
        MisconfigurationException: On all ranks: they differ. Or this process is one of several that
            were started, and its trainer knows of no other.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 120.0,
        hang_timeout_s: float | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        if isinstance(ignore, str):
            raise ValueError(f"ignore is a list of names, got the text {ignore!r}.")
        for name, value in (("timeout_s", timeout_s), ("hang_timeout_s", hang_timeout_s)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is a number of seconds > 0, got {value}.")
        self.timeout_s = timeout_s
        self.hang_timeout_s = hang_timeout_s
        self.ignore = tuple(ignore)
        self._watch: StackWatch | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the models, before DDP or another strategy waits for all ranks to have one."""
        if stage != "fit":
            return
        _refuse_to_be_alone(trainer)
        if trainer.world_size > 1:
            ranks = self._gather(trainer, facts_of_model(trainer, pl_module))
            for line in [f"{len(ranks)} ranks:", *node_lines(ranks)]:
                rank_zero_info(line)
            self._refuse(differences(ranks, ignore=self.ignore))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare what the ranks will train on, and with."""
        if trainer.world_size == 1:
            return
        ranks = self._gather(trainer, facts_of_data(trainer, pl_module))
        self._refuse(differences(ranks, ignore=self.ignore))
        self._end()  # that of a fit that failed
        if self.hang_timeout_s is not None:
            title = f"{_title(trainer)}: no batch has ended"
            self._watch = StackWatch(self.hang_timeout_s, title).start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note that the run goes on."""
        if self._watch is not None:
            self._watch.beat()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Note that the run goes on."""
        if self._watch is not None:
            self._watch.beat()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch no longer."""
        self._end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Watch no longer."""
        self._end()

    def _gather(self, trainer: Trainer, facts: RankFacts) -> list[RankFacts]:
        title = f"{_title(trainer)}: RankCheck has waited for the other ranks"
        watch = StackWatch(self.timeout_s, title).start()
        try:
            return gather(facts)
        finally:
            watch.end()

    def _refuse(self, found: list[str]) -> None:
        if not found:
            return
        more = len(found) - _MOST_DIFFERENCES
        lines = found[:_MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
        raise MisconfigurationException(
            "The ranks must run the same thing on different data, and they do not:\n  "
            + "\n  ".join(lines)
            + "\nSee that all of them have the same code, configuration and files, and that none "
            "of it depends on the rank. What may differ: RankCheck(ignore=[NAME])."
        )

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None


def _title(trainer: Trainer) -> str:
    return f"Rank {trainer.global_rank} of {trainer.world_size}"


def _refuse_to_be_alone(trainer: Trainer) -> None:
    started = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if trainer.world_size == 1 and started > 1:
        raise MisconfigurationException(
            f"The launcher started {started} processes, and this Trainer knows of no other: each "
            "would train by itself and write into the same files. Give the Trainer "
            f'devices={os.environ.get("LOCAL_WORLD_SIZE", started)} and strategy="ddp" (and '
            "num_nodes), or start one process."
        )
