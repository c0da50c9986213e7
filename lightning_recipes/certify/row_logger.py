"""A logger for the recorder."""

from typing import Any

from lightning.pytorch.loggers.logger import DummyLogger

from lightning_recipes.certify.recorder import Recorder

__all__ = ["RowLogger"]


class RowLogger(DummyLogger):
    """A logger that hands every row to a recorder, and takes any other call without a word.

    It stands in for the configured loggers, so that a certificate leaves no trace in log folders
    and starts no run at a tracking service.

    Args:
        recorder: Gets the rows.
        save_dir: What the trainer and callbacks may take for the logger's folder.
    """

    def __init__(self, recorder: Recorder, save_dir: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._save_dir = save_dir

    @property
    def save_dir(self) -> str:
        """The folder of the run."""
        return self._save_dir

    @property
    def log_dir(self) -> str:
        """The folder of the run."""
        return self._save_dir

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Record a row."""
        self._recorder.row(metrics, step)
