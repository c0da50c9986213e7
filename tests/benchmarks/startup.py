"""How long it takes to get going: ``python -m tests.benchmarks.startup``.

What is imported, in fresh interpreters, without the start of the interpreter. And from the command
to the start of the first training step, once afresh and once from a checkpoint: ``lightning-recipes
fit --config configs/digits.yaml`` with its loggers, callbacks and progress bar, against a plain
script and a plain LightningCLI with the same network and data and a ModelCheckpoint
(``plain_digits.py``). Nobody validates before it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.benchmarks.report import Table, compare, main

ROOT = Path(__file__).parents[2]
IMPORTS = {
    "ours: lightning_recipes (and lightning.pytorch)": "lightning_recipes",
    "lightning.pytorch": "lightning.pytorch",
    "torch": "torch",
    "transformers' Trainer": "transformers.trainer",
    "accelerate": "accelerate",
}
PROGRAM = """
import time
start = time.perf_counter()
import {}
print("took", time.perf_counter() - start)
"""
PLAIN = ["-m", "tests.benchmarks.plain_digits"]
NAMES = {
    "ours": "ours: lightning-recipes fit",
    "script": "a script of Lightning's Trainer",
    "cli": "a script of LightningCLI",
}
STOP = "--trainer.callbacks+=tests.benchmarks.plain_digits.Stop"
NUM_STEPS = 100  # until the checkpoint, as often as configs/digits.yaml has one


def said(word: str, arguments: Sequence[str]) -> float:
    """Run python and return the number that it prints after a word."""
    result = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=ROOT
    )
    found = re.search(rf"^{word} (\S+)$", result.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{arguments} failed:\n{result.stdout}\n{result.stderr}")
    return float(found[1])


def import_seconds(module: str) -> float:
    """Return how long an import takes in a fresh interpreter."""
    return said("took", ["-c", PROGRAM.format(module)])


def seconds_to_step(arguments: Sequence[str]) -> float:
    """Return the time from the start of a process to that of its first training step."""
    start = time.time()
    return said("step at", arguments) - start


def ours(root: Path) -> list[str]:
    """Return the arguments of our command."""
    options = ["--config=configs/digits.yaml", "--trainer.num_sanity_val_steps=0", STOP]
    return ["-m", "lightning_recipes", "fit", *options, f"--trainer.default_root_dir={root}"]


def script(root: Path) -> list[str]:
    """Return those of the plain script."""
    return [*PLAIN, str(root)]


def cli(root: Path) -> list[str]:
    """Return those of the plain LightningCLI: the options of the script."""
    options = {
        "max_epochs": 30,
        "log_every_n_steps": 10,
        "num_sanity_val_steps": 0,
        "default_root_dir": root,
        "callbacks": "lightning.pytorch.callbacks.ModelCheckpoint",
    }
    return [*PLAIN, "fit", *(f"--trainer.{name}={value}" for name, value in options.items()), STOP]


def make_checkpoints(folder: Path) -> Path:
    """Train ours and the script until each has a checkpoint; return that of the script."""
    said("step at", [*ours(folder), f"--trainer.callbacks.after={NUM_STEPS}"])
    said("step at", [*script(folder), f"--after={NUM_STEPS}"])
    return max(Path(folder, "checkpoints").glob("*.ckpt"), key=os.path.getmtime)


def tables(quick: bool) -> Iterator[Table]:
    """Yield one table for the imports, and one for each way to start."""
    num_rounds = 1 if quick else 3
    imports = {
        name: partial(import_seconds, module) if find_spec(module.split(".")[0]) else None
        for name, module in IMPORTS.items()
    }
    if not quick:
        yield compare("import", "s", imports, num_rounds=num_rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fresh = {"ours": ours(folder), "script": script(folder), "cli": cli(folder)}
        yield table("from the command to the first step", fresh, num_rounds)
        if quick:
            return
        path = make_checkpoints(folder)
        resumed = {
            "ours": [*fresh["ours"], "--resume=auto"],
            "script": [*fresh["script"], f"--checkpoint={path}"],
            "cli": [*fresh["cli"], f"--ckpt_path={path}"],
        }
        yield table("the same, from a checkpoint", resumed, num_rounds)


def table(title: str, commands: dict[str, list[str]], num_rounds: int) -> Table:
    """Return the times that commands take to the first step."""
    ways = {NAMES[key]: partial(seconds_to_step, command) for key, command in commands.items()}
    return compare(title, "s", ways, num_rounds=num_rounds, warm_up=False)


if __name__ == "__main__":
    main(tables, __doc__)
