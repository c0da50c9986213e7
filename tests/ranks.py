"""Run a function on real ranks: processes that share a gloo group."""

import os
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.forks import servers

_TIMEOUT_S = 120


def run_ranks(function: Callable[..., Any], *args: Any, world_size: int = 2) -> list[Any]:
    """Call ``function(*args)`` on every rank of a gloo group and return the results by rank.

    ``function`` stands at the top of a test module, and takes and returns what pickles. A rank that
    fails or hangs fails the test with its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        join = partial(_join_group, str(Path(folder, "store")))
        return _run(join, function, args, world_size)


def run_trainer_ranks(function: Callable[..., Any], *args: Any, world_size: int = 2) -> list[Any]:
    """Do as :func:`run_ranks` for a function whose Trainer makes the group itself.

    The processes find what torchrun sets, so ``Trainer(accelerator="cpu", devices=2,
    strategy="ddp")`` starts no others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return _run(partial(_set_torchrun_environment, port), function, args, world_size)


def _run(
    join: Callable[[int, int], None],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    world_size: int,
) -> list[Any]:
    forks = servers(world_size)
    for rank, fork in enumerate(forks):
        fork.start(_main, join, function, args, rank, world_size)
    answers = [fork.answer(_TIMEOUT_S) for fork in forks]
    errors = [f"Rank {rank} failed:\n{error}" for rank, (_, error) in enumerate(answers) if error]
    if errors:
        raise RuntimeError("\n".join(errors))
    return [result for result, _ in answers]


def _join_group(store: str, rank: int, world_size: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)


def _set_torchrun_environment(port: int, rank: int, world_size: int) -> None:
    os.environ.update(
        TORCHELASTIC_RUN_ID="tests",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
    )


def _main(
    join: Callable[[int, int], None],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
) -> Any:
    join(rank, world_size)
    result = function(*args)
    if dist.is_initialized():
        dist.barrier()  # nobody leaves while another still talks
        dist.destroy_process_group()
    return result
