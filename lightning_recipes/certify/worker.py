"""One run of a certificate: ``lightning-recipes fit``, watched, and killed if so told."""

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch.optim import Optimizer

from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.certify.digests import digest
from lightning_recipes.certify.recorder import BatchMarker, Recorder
from lightning_recipes.certify.row_logger import RowLogger
from lightning_recipes.cli import RecipesCLI

__all__ = ["KillPoint", "WorkerCLI", "WorkerSettings"]

_VARIABLE = "LIGHTNING_RECIPES_CERTIFY"
_OF_EACH_RUN = ("ckpt_path", "config")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a certificate asks of one run, beside the command line.

    It travels in an environment variable, so that the command is the user's own, and reaches the
    ranks that Lightning starts.

    Args:
        records: Folder for the records.
        kill_in_step: The optimizer step, from 1, in which the run kills itself; None for none.
        ranks: Number of processes; None as configured.
        workers: ``num_workers`` of the data module; None as configured.
    """

    records: str
    kill_in_step: int | None = None
    ranks: int | None = None
    workers: int | None = None

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that holds the settings."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "WorkerSettings":
        """Read what :meth:`to_environment` wrote."""
        return cls(**json.loads(os.environ[_VARIABLE]))


@final
class KillPoint(Callback):
    """Kill the process group with SIGKILL between the backward and the update of a step.

    Args:
        step: The optimizer step, from 1.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Kill, if this is the step: all ranks and all data workers at once."""
        if trainer.global_step + 1 >= self.step:
            os.killpg(os.getpgrp(), signal.SIGKILL)


@final
class WorkerCLI(RecipesCLI):
    """The command line, with a recorder, perhaps a kill point, and all output below its root.

    The configured loggers are replaced by one that records; the folders of ``ResumeCheckpoint`` and
    ``ModelCheckpoint`` are moved below the root; and a ``ResumeCheckpoint`` saves at every step, so
    that there is a file before any kill.

    Args:
        args: Arguments instead of those of the process.
    """

    def before_instantiate_classes(self) -> None:
        """Apply the number of ranks and of workers."""
        self.settings = WorkerSettings.from_environment()
        config = self.config[self.subcommand]
        trainer, data = config["trainer"], config.get("data")
        if self.settings.ranks is not None:
            trainer["devices"] = self.settings.ranks
            for name, value in (("accelerator", "cpu"), ("strategy", "ddp")):
                if trainer[name] == "auto":
                    trainer[name] = value
        options = {} if data is None else data.get("init_args") or {}
        self.workers = None
        if self.settings.workers is not None and "num_workers" in options:
            options["num_workers"] = self.workers = self.settings.workers
        # Taken here, because instances and this run's own paths do not belong to it.
        plain = {k: v for k, v in config.as_dict().items() if k not in _OF_EACH_RUN}
        plain["trainer"].pop("default_root_dir")
        self.config_digest = digest(plain)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer and put the recorder into it."""
        trainer = super().instantiate_trainer(**kwargs)
        root = trainer.default_root_dir
        facts = {"config_digest": self.config_digest, "workers": self.workers}
        recorder = Recorder(Path(self.settings.records), facts=facts)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        for i, callback in enumerate(callbacks):
            if isinstance(callback, ResumeCheckpoint):
                callback.dirpath, callback.every_n_steps, callback.keep_last = None, 1, 2
            elif isinstance(callback, ModelCheckpoint) and not _is_below(root, callback.dirpath):
                callback.dirpath = str(Path(root, "checkpoints", str(i)).absolute())
        added: list[Callback] = [recorder]
        if self.settings.kill_in_step is not None:
            added.append(KillPoint(self.settings.kill_in_step))
        # A checkpoint written at the end of a batch should find that end recorded.
        writers = [i for i, callback in enumerate(callbacks) if isinstance(callback, Checkpoint)]
        end = writers[0] if writers else len(callbacks)
        callbacks[end:end] = added
        savers = [i for i, c in enumerate(callbacks) if isinstance(c, ResumeCheckpoint)]
        callbacks.insert(savers[-1] + 1 if savers else 0, BatchMarker(recorder))
        if trainer.loggers:
            trainer.loggers = [RowLogger(recorder, root)]
        return trainer

    def after_fit(self) -> None:
        """Say nothing: these files are about to be removed."""


def _is_below(root: str, dirpath: Any) -> bool:
    return dirpath is not None and Path(dirpath).is_relative_to(Path(root).absolute())


if __name__ == "__main__":
    WorkerCLI()
