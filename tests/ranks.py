"""Run a function on real ranks: processes that share a gloo group."""

import os
import pickle
import socket
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

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
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for rank in range(world_size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_main, args=(sender, join, function, args, rank, world_size), daemon=False
        )
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    try:
        answers = [_receive(pipe, rank) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()
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


def _receive(pipe: Connection, rank: int) -> tuple[Any, str | None]:
    if not pipe.poll(_TIMEOUT_S):
        return None, f"It did not answer within {_TIMEOUT_S} s."
    answer: tuple[Any, str | None] = pickle.loads(pipe.recv_bytes())
    return answer


def _main(
    sender: Connection,
    join: Callable[[int, int], None],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
) -> None:
    torch.set_num_threads(1)
    try:
        join(rank, world_size)
        result = function(*args)
        if dist.is_initialized():
            dist.barrier()  # nobody leaves while another still talks
            dist.destroy_process_group()
        # Plain pickle: multiprocessing would share a tensor's memory, which ends with the process.
        sender.send_bytes(pickle.dumps((result, None)))
    except Exception:
        sender.send_bytes(pickle.dumps((None, traceback.format_exc())))
