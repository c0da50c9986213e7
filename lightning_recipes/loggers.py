"""The loggers of a run, which go on where it is resumed."""

import csv
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from lightning_recipes.callbacks.loop_state import num_logged_steps
from lightning_recipes.callbacks.run_state import logger_versions
from lightning_recipes.checkpoints import read_run

__all__ = ["run_loggers"]


def run_loggers(root: str, *, resumed_from: str | None = None) -> list[Logger]:
    """Return a CSVLogger, and a TensorBoardLogger where that is installed, of one version.

    Of a resumed run they go on in the version of the checkpoint: of what was logged after it was
    saved, and will be logged again, the rows of ``metrics.csv`` are taken out, and TensorBoard is
    told to take no notice of the events. So a plot shows one curve.

    Args:
        root: The run's folder; they write into ``lightning_logs/version_N`` there.
        resumed_from: The checkpoint from which the run goes on, of
            :class:`~lightning_recipes.ResumeCheckpoint`; another one begins a new version.
    """
    version, step = None, None
    if resumed_from is not None:
        checkpoint = read_run(Path(resumed_from))
        version = logger_versions(checkpoint).get(CSVLogger.__name__)
        step = num_logged_steps(checkpoint)
    table = CSVLogger(root, version=version)
    if version is not None and step is not None:
        _go_on_before(table, step)
    if find_spec("tensorboard") is None:
        return [table]
    purge = {} if version is None else {"purge_step": step}
    return [table, TensorBoardLogger(root, version=table.version, **purge)]  # type: ignore[arg-type]


@rank_zero_only
def _go_on_before(logger: CSVLogger, step: int) -> None:
    """Keep the rows before a step, where Lightning (2.6.6) would delete the file."""
    path = Path(logger.log_dir, "metrics.csv")
    kept = path.with_name(".metrics.csv")  # found again, if this is killed half-way
    if path.is_file() and not kept.is_file():
        os.replace(path, kept)
    rows: list[dict[str, str]] = []
    if kept.is_file():
        with kept.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["step"]) < step]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Experiment logs directory .* is not empty")
        writer = logger.experiment
    for row in rows:
        metrics = {name: _number(text) for name, text in row.items() if text and name != "step"}
        writer.log_metrics(metrics, int(row["step"]))
    writer.save()
    kept.unlink(missing_ok=True)


def _number(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else float(text)
