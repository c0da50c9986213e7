"""The command line: Lightning's own, with loggers under the run's folder and a word at the end."""

import os
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import torch
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.launch.agreement import agreed
from lightning_recipes.launch.launched import launched
from lightning_recipes.launch.strangers import refuse_strangers
from lightning_recipes.loggers import run_loggers
from lightning_recipes.resume import choose_checkpoint, resume_folder

__all__ = ["LossProgressBar", "RecipesCLI"]

_BATCHES_PER_REFRESH = 20
_DESCRIPTION = """Train, evaluate and resume PyTorch Lightning modules from YAML files.

  lightning-recipes fit --config configs/names.yaml
  lightning-recipes fit --config configs/names.yaml --config configs/bf16.yaml
  lightning-recipes fit --config configs/names.yaml --trainer.max_epochs 3 --data.batch_size 128
  lightning-recipes fit --config configs/names.yaml --resume auto
  lightning-recipes fit --config configs/names.yaml --ckpt_path PATH
  lightning-recipes test --config configs/names.yaml --ckpt_path PATH
  lightning-recipes fit --config configs/names.yaml --print_config
  lightning-recipes certify --config configs/names.yaml --trainer.max_steps 20
  lightning-recipes ckpt runs/names/resume
  lightning-recipes run --devices 2 -- fit --config configs/names.yaml

"certify" kills and resumes the training and tells whether it is still the same run; see
"lightning-recipes certify --help". "ckpt" tells what is in a checkpoint, and which ones of a folder
are intact; see "lightning-recipes ckpt --help". "run" starts one process per device, on one machine
or many; see "lightning-recipes run --help".

A later --config or option wins over an earlier one; "callbacks+:" in a file adds to the list
instead of replacing it. The configuration decides what is built, a checkpoint only in what state it
starts.
"""


class _HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """The help of jsonargparse, with the lines of the description as they are written."""


class LossProgressBar(TQDMProgressBar):
    """The progress bar, with the training loss fetched from the device when it is drawn.

    ``self.log(..., prog_bar=True)`` in a training step makes Lightning (2.6.6) fetch the value
    after every batch, drawn or not, so that the host waits for the device each time.
    """

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Return what stands at the end of the bar."""
        metrics = super().get_metrics(trainer, pl_module)
        loss = trainer.callback_metrics.get("train/loss")
        return metrics if loss is None else {**metrics, "train/loss": loss.item()}


class RecipesCLI(LightningCLI):
    """LightningCLI for any LightningModule and LightningDataModule.

    Everything a run writes goes under ``trainer.default_root_dir``: ``metrics.csv`` and the saved
    ``config.yaml`` in ``lightning_logs/version_N``, TensorBoard events beside them where it is
    installed, the best model in ``checkpoints``, the run itself in ``resume``. ``predict`` saves
    its predictions there too, one file per rank.

    Under a launcher (``lightning-recipes run``, torchrun, ``fabric run``, ``srun``) the trainer
    takes ``devices``, ``num_nodes`` and, where they were given, ``strategy``, ``precision`` and
    ``accelerator`` from there; a configuration that says otherwise is an error.

    Args:
        args: Arguments instead of those of the process, for use from Python.
    """

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            save_config_kwargs={"overwrite": True},
            parser_kwargs={
                "description": _DESCRIPTION,
                "formatter_class": _HelpFormatter,
                # A misspelt option must not pass for the one that it begins.
                "allow_abbrev": False,
                **{name: {"allow_abbrev": False} for name in self.subcommands()},
            },
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what ``fit`` has beside Lightning's arguments; the others take no notice of it."""
        parser.add_argument(
            "--resume",
            type=str | None,
            default=None,
            help="From which checkpoint fit goes on: 'auto' for the newest intact one of this run, "
            "or a fresh start if there is none, so that the same command recovers from anything; "
            "or a path. The loggers go on in its version, too.",
        )

    def _parse_ckpt_path(self) -> None:
        """Leave the configuration as it was given.

        LightningCLI (2.6.6, no public switch) lets the hyper-parameters in a checkpoint overrule
        the files *and the command line*, so that a value just typed is silently ignored.
        """

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with loggers and a progress bar where the configuration names none."""
        options = self.config_init[self.subcommand]["trainer"]
        kwargs = {**self._launched(options), **kwargs}
        root = options["default_root_dir"] or "."
        callbacks = options["callbacks"] or []
        callbacks = [*callbacks] if isinstance(callbacks, list) else [callbacks]
        resumed_from = self._choose_checkpoint(callbacks, root)
        if options["logger"] is None or options["logger"] is True:
            kwargs["logger"] = run_loggers(root, resumed_from=resumed_from)
        for callback in callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                # Lightning's own default moves with every start, and a resumed ModelCheckpoint
                # forgets the best model when its folder has moved.
                callback.dirpath = str(Path(root, "checkpoints").absolute())
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if options["enable_progress_bar"] is not False and not has_bar:
            callbacks.append(LossProgressBar(refresh_rate=_BATCHES_PER_REFRESH))
        trainer = super().instantiate_trainer(callbacks=callbacks, **kwargs)
        refuse_strangers(trainer)
        return trainer

    def _launched(self, options: Namespace) -> dict[str, Any]:
        given = dict(options)
        if given["num_nodes"] == 1:  # the default, which the parser does not tell from a wish
            given["num_nodes"] = None
        return agreed(
            given,
            launched(os.environ),
            show="trainer.{name}: {value} in the configuration",
            way_out="override it with --trainer.{name} {value}, or launch as it says",
        )

    def _choose_checkpoint(self, callbacks: list[Callback], root: str) -> str | None:
        config = self.config_init[self.subcommand]
        if self.subcommand != "fit" or config["resume"] is None:
            return None
        if config["ckpt_path"] is not None:
            raise MisconfigurationException(
                f"Give one of --resume and --ckpt_path, got {config['resume']!r} and "
                f"{config['ckpt_path']!r}."
            )
        folder = resume_folder(callbacks, root)
        chosen = choose_checkpoint(folder, config["resume"], module=self.model)
        config["ckpt_path"] = chosen
        return chosen

    def predict(self, model: LightningModule, **kwargs: Any) -> None:
        """Predict, and save the list of batches of predictions, one file per rank."""
        predictions = self.trainer.predict(model, **kwargs)
        path = Path(self.trainer.default_root_dir, f"predictions-rank{self.trainer.global_rank}.pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(predictions, path)
        self.trainer.print(f"Predictions: {path}")

    def after_fit(self) -> None:
        """Say where the best model is and how to go on."""
        trainer = self.trainer
        log_dir = trainer.log_dir  # broadcasts, so on every rank
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        resume = next((c for c in trainer.callbacks if isinstance(c, ResumeCheckpoint)), None)  # type: ignore[attr-defined]
        if best:
            trainer.print(f"Best model:  {best}")
        if resume is not None and resume.last_path is not None:
            config = Path(log_dir or ".", "config.yaml")
            command = f"lightning-recipes fit --config {config} --ckpt_path {resume.last_path}"
            trainer.print(f"To go on:    {command}")
