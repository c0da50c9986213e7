"""Run the project's commands as a person would, in a process and a folder of their own."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_command(command: str, cwd: Path, *, timeout_s: float = 240) -> str:
    """Run a command line in ``cwd``, with configs/ and examples/ at hand; return its output."""
    for name in ("configs", "examples"):
        if not (cwd / name).exists():
            (cwd / name).symlink_to(ROOT / name)
    program, *arguments = shlex.split(command)
    programs = {
        "lightning-recipes": [sys.executable, "-m", "lightning_recipes"],
        "python": [sys.executable],
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*programs[program], *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    if result.returncode != 0:
        raise RuntimeError(f"{command!r} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout
