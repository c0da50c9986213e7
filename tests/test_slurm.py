"""The batch script, with commands in the place of SLURM's that note how they were called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.test_configs import SHORT

SCRIPT = ROOT / "configs" / "slurm" / "train.sbatch"
NOTE = """#!/usr/bin/env bash
printf '%s\\n' "$@" > called
"""
# As srun does for each task: leaves its own options out and runs the rest.
RUN = f"""#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
shift
exec env -u SLURM_NTASKS -u SLURM_JOB_ID {sys.executable} -m lightning_recipes "$@"
"""


def submit(srun: str, cwd: Path, *arguments: str, **environment: str) -> str:
    """Run the script as the first node of a job would; return its output."""
    (cwd / "bin").mkdir(exist_ok=True)
    stub = cwd / "bin" / "srun"
    stub.write_text(srun)
    stub.chmod(0o755)
    if not (cwd / "configs").exists():
        (cwd / "configs").symlink_to(ROOT / "configs")
    ours = {"PATH": f"{cwd / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **ours, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    if run.returncode:
        raise RuntimeError(run.stdout)
    return run.stdout


def job(nodes: int, tasks: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NTASKS": str(nodes * tasks),
    }


def test_the_shell_takes_it() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_it_asks_to_be_warned_and_requeued() -> None:
    lines = SCRIPT.read_text().splitlines()
    # Without "B:" the signal goes to the tasks, and not to this shell. SIGUSR1 is what Lightning's
    # SLURM environment, and so ResumeCheckpoint, answers with a requeue.
    assert {"#SBATCH --signal=SIGUSR1@120", "#SBATCH --requeue"} <= set(lines)


def test_it_starts_a_task_for_each_rank_and_resumes(tmp_path: Path) -> None:
    submit(NOTE, tmp_path, "--data.batch_size", "8", **job(3, 4))
    called = (tmp_path / "called").read_text().split()
    assert called[:4] == ["--kill-on-bad-exit=1", "--label", "lightning-recipes", "fit"]
    options = dict(zip(called[4::2], called[5::2], strict=True))
    assert options["--trainer.num_nodes"] == "3"
    assert options["--trainer.devices"] == "4"
    assert options["--resume"] == "auto"
    assert options["--data.batch_size"] == "8"


def test_outside_of_a_job_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="submit this with sbatch"):
        submit(NOTE, tmp_path)


@pytest.mark.slow
def test_the_same_script_goes_on_where_it_was(tmp_path: Path) -> None:
    options = [*SHORT.split(), "--trainer.accelerator", "cpu"]
    first = submit(RUN, tmp_path, *options, **job(1, 1))
    assert "A fresh start" in first
    again = submit(RUN, tmp_path, *options, **job(1, 1))
    assert "step=000000003.ckpt, the newest intact checkpoint" in again
