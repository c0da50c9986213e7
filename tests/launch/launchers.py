"""The ways to start a script, as a person would."""

import os
import subprocess
import sys
from pathlib import Path

from tests.commands import ROOT

RUN = ("-m", "lightning_recipes", "run", "--accelerator", "cpu")
LAUNCHERS = {
    "run": (*RUN, "--devices", "2"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    "fabric run": ("-m", "lightning.fabric.cli", "--accelerator", "cpu", "--devices", "2"),
}


def start(*arguments: str, cwd: Path) -> "subprocess.Popen[str]":
    """Start Python with these arguments, in a process group of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LT_")}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait until no process is left that holds the output; return the exit code and the output."""
    try:
        output, _ = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
    return process.returncode, output


def launch(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Start, and wait."""
    return end(start(*arguments, cwd=cwd))
