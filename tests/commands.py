"""Run the project's commands as a person would, in a process and a folder of their own."""

import os
import runpy
import shlex
import sys
import tempfile
from pathlib import Path

from tests.forks import servers

ROOT = Path(__file__).parents[1]


def run_command(command: str, cwd: Path, *, timeout_s: float = 240) -> str:
    """Run a command line in ``cwd``, with configs/ and examples/ at hand; return its output.

    Its process is forked (see ``tests/forks.py``) and then does as Python does with its arguments:
    importing torch and Lightning would take longer than most of the commands.
    """
    for name in ("configs", "examples"):
        if not (cwd / name).exists():
            (cwd / name).symlink_to(ROOT / name)
    program, *arguments = shlex.split(command)
    programs = {"lightning-recipes": ["-m", "lightning_recipes"], "python": []}
    (fork,) = servers(1)
    with tempfile.NamedTemporaryFile("r") as output:
        fork.start(_main, [*programs[program], *arguments], cwd, output.name)
        _, error = fork.answer(timeout_s)
        shown = output.read()
    if error:
        raise RuntimeError(f"{command!r} failed:\n{shown}\n{error}")
    return shown


def _main(arguments: list[str], cwd: Path, output: str) -> None:
    os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    os.chdir(cwd)
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, str(cwd))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).parent.absolute()))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"It ended with {end.code}.") from end
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
