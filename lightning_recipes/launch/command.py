"""The command line of ``lightning-recipes run``."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import StrategyRegistry

from lightning_recipes.arguments import at_least
from lightning_recipes.launch.devices import num_processes
from lightning_recipes.launch.job import Job

__all__ = ["main"]

_PRECISIONS = (
    *("64-true", "64", "32-true", "32", "16-true", "16-mixed", "16", "bf16-true", "bf16-mixed"),
    *("bf16", "transformer-engine", "transformer-engine-float16"),
)
_DESCRIPTION = """Start one process per device, on one machine or many, as ranks of one training.

  lightning-recipes run --devices 2 train.py --my-option 1
  lightning-recipes run --devices 2 -- fit --config configs/names.yaml
  lightning-recipes run --devices 2 --accelerator cpu examples/multi_gpu.py

What is asked for here is what the Trainer gets. In a script, build it with

  trainer = lightning_recipes.trainer(max_epochs=10)

which is lightning.pytorch.Trainer with devices, num_nodes, strategy, precision and accelerator
taken from the launcher: this one, torchrun, "fabric run" or srun. After "--" come the commands of
lightning-recipes itself (fit, validate, test, predict), which do the same. A script or a
configuration that asks for something else is refused, and so is a Trainer that would train alone,
beside the others. A script with a Lightning Fabric in it takes the same from here.

Several machines: the same command on each, with its own --node-rank.

  lightning-recipes run --devices 8 --num-nodes 2 --node-rank 0 --main-address host0 train.py
  lightning-recipes run --devices 8 --num-nodes 2 --node-rank 1 --main-address host0 train.py

Recovery: with --max-restarts K all processes start again when one has failed, up to K times. Let
the script resume by itself, and the run ends as if nothing had happened:

  lightning-recipes run --max-restarts 3 -- fit --config configs/names.yaml --resume auto
  trainer.fit(module, data, ckpt_path=lightning_recipes.resume_path(trainer))    # in a script

On several machines the restarted ranks may be numbered another way round: let them share a folder.

SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 go on to the processes, which have the time they need to save;
the same signal again ends them after 30 seconds at the latest. So does Ctrl-C.

Exit status: that of the process that failed first: 75 if it was preempted and saved itself (nothing
is started again then: run the same command again to go on), 128 + n if signal n ended it; 2 if the
arguments are wrong."""
_EXCLUDED = re.compile(r".*(spawn|fork|notebook|xla|tpu|hpu|offload).*")


def main(arguments: Sequence[str]) -> int:
    """Start the processes, wait for them, and return the exit status.

    Args:
        arguments: What follows ``lightning-recipes run``.
    """
    parser = _parser()
    ours, dashes, theirs = _split(list(arguments))
    options = parser.parse_args(ours)
    command = [*options.command, *dashes, *theirs] if options.command else theirs
    if not command:
        parser.error('give a script, or "--" and a command, such as -- fit --config FILE')
    if not options.command:
        command = ["-m", "lightning_recipes", *command]
    elif not Path(command[0]).is_file():
        hint = ' (put "--" before a command)' if command[0] in _OWN_COMMANDS else ""
        parser.error(f"there is no script {command[0]!r}{hint}")
    if not 0 <= options.node_rank < options.num_nodes:
        parser.error(
            f"--node-rank must be in [0, --num-nodes), got {options.node_rank} of "
            f"{options.num_nodes}"
        )
    try:
        number = num_processes(options.devices, accelerator=options.accelerator)
    except (TypeError, ValueError, MisconfigurationException) as error:
        parser.error(f"--devices {options.devices}: {error}")
    if number < 1:
        parser.error(f"--devices must be at least one, got {options.devices}")
    _announce(options, number)
    return Job(
        num_processes=number,
        num_nodes=options.num_nodes,
        node_rank=options.node_rank,
        main_address=options.main_address,
        main_port=options.main_port,
        max_restarts=options.max_restarts,
    ).run(command)


_OWN_COMMANDS = ("fit", "validate", "test", "predict")


def _split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    if "--" not in arguments:
        return arguments, [], []
    index = arguments.index("--")
    return arguments[:index], ["--"], arguments[index + 1 :]


def _announce(options: argparse.Namespace, number: int) -> None:
    # Fabric's variables, so that a script with a Fabric in it takes the same from here.
    os.environ["LT_CLI_USED"] = "1"
    os.environ["LT_DEVICES"] = options.devices if "," in options.devices else str(number)
    os.environ["LT_NUM_NODES"] = str(options.num_nodes)
    for name in ("strategy", "precision", "accelerator"):
        os.environ.pop(f"LT_{name.upper()}", None)
        if (value := getattr(options, name)) is not None:
            os.environ[f"LT_{name.upper()}"] = value
    # As many threads as processors in each process would get in each other's way.
    is_linux = sys.platform == "linux"
    num_cpus = len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
    if number > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cpus // number)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-recipes run",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="lightning-recipes run [options] (SCRIPT [its arguments] | -- fit [its arguments])",
    )
    strategies = [n for n in StrategyRegistry.available_strategies() if not _EXCLUDED.match(n)]
    add = parser.add_argument
    add(
        "--devices",
        default="auto",
        metavar="2 | 0,3 | auto",
        help="of this machine: how many, or which; by default all GPUs, or one process on CPUs",
    )
    add("--num-nodes", type=at_least(1), default=1, metavar="M", help="machines; default: 1")
    add("--node-rank", type=at_least(0), default=0, metavar="R", help="which one this is, from 0")
    add(
        "--main-address",
        default="127.0.0.1",
        metavar="A",
        help="the machine with node rank 0, as the others reach it; one machine needs none",
    )
    add(
        "--main-port",
        type=at_least(1),
        default=29400,
        metavar="P",
        help="a free port there; one machine finds one by itself; default: %(default)s",
    )
    add("--accelerator", choices=("auto", "cpu", "cuda", "gpu", "mps"), help="default: the best")
    add("--strategy", choices=strategies, metavar="NAME", help=f"one of {', '.join(strategies)}")
    add("--precision", choices=_PRECISIONS, metavar="P", help=f"one of {', '.join(_PRECISIONS)}")
    add(
        "--max-restarts",
        type=at_least(0),
        default=0,
        metavar="K",
        help="how often all processes start again when one has failed; default: never",
    )
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
