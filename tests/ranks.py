"""Run a function on real ranks: processes that share a gloo group."""

import os
import pickle
import socket
import tempfile
import traceback
from collections.abc import Callable
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
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_main, args=(sender, function, args, rank, world_size, folder), daemon=False
            )
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            results = [_receive(pipe, rank) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()
    return results


def run_trainer_ranks(function: Callable[..., Any], *args: Any, world_size: int = 2) -> list[Any]:
    """Do as :func:`run_ranks` for a function whose Trainer makes the group itself.

    The processes find what torchrun sets, so ``Trainer(accelerator="cpu", devices=2,
    strategy="ddp")`` starts no others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return run_ranks(_as_torchrun, function, args, port, world_size=world_size)


def _as_torchrun(function: Callable[..., Any], args: tuple[Any, ...], port: int) -> Any:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    os.environ.update(
        TORCHELASTIC_RUN_ID="tests",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
    )
    return function(*args)


def _receive(pipe: Connection, rank: int) -> Any:
    if not pipe.poll(_TIMEOUT_S):
        raise TimeoutError(f"Rank {rank} did not answer within {_TIMEOUT_S} s.")
    result, error = pickle.loads(pipe.recv_bytes())
    if error is not None:
        raise RuntimeError(f"Rank {rank} failed:\n{error}")
    return result


def _main(
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    folder: str,
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{Path(folder, 'store')}",
            rank=rank,
            world_size=world_size,
        )
        # Plain pickle: multiprocessing would share a tensor's memory, which ends with the process.
        sender.send_bytes(pickle.dumps((function(*args), None)))
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except Exception:
        sender.send_bytes(pickle.dumps((None, traceback.format_exc())))
