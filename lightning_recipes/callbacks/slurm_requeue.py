"""Putting a SLURM job back into the queue."""

import os
import subprocess

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_recipes.callbacks.loop_state import cluster_environment

__all__ = ["requeue"]


def requeue(trainer: Trainer, reason: str) -> None:
    """Do what Lightning's own handler does after it has saved: ``scontrol requeue <job>``.

    On rank 0, where Lightning runs in a SLURM environment with ``auto_requeue``, for the
    environment's ``requeue_signal`` and for "max_wall_time". Not for other signals: SIGTERM comes
    when a job is cancelled, which means it, or preempted, where SLURM puts it back by itself.
    """
    environment = cluster_environment(trainer)
    if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
        return
    asked = environment.requeue_signal
    if reason not in ("max_wall_time", None if asked is None else asked.name):
        return
    if trainer.is_global_zero:
        command = ["scontrol", "requeue", _job_id()]
        try:
            code = subprocess.call(command)
        except OSError as error:
            rank_zero_warn(f"{' '.join(command)} could not be run: {error}.")
        else:
            rank_zero_info(f"{' '.join(command)} ended with {code}.")


def _job_id() -> str:
    # an element of an array is a job of its own
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]
