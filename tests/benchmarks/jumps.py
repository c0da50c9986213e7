"""Ways to the first batch of a resumed run, or of an epoch, in shuffled data of any length."""

import importlib.util
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_recipes import ResumableDataLoader

__all__ = ["JUMPS", "OURS", "STARTS", "Jump", "is_installed"]

BATCH_SIZE = 32

Jump = Callable[[int, int], Any]
"""Loads the batch at a position, in samples, of a data set of a length: ``(length, position)``."""


class Numbers(Dataset[int]):
    """``range(length)``."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def ours(length: int, position: int) -> Any:
    """Jump with ours."""
    loader = ResumableDataLoader(Numbers(length), BATCH_SIZE, shuffle=True)
    loader.load_state_dict({**loader.state_dict(), "batch": position // BATCH_SIZE})
    return next(iter(loader))


def torchdata(length: int, position: int) -> Any:
    """Jump with torchdata's loader and a state as it saves it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Any = StatefulDataLoader(Numbers(length), BATCH_SIZE, shuffle=True)
    loader.load_state_dict(torchdata_state(position // BATCH_SIZE))
    return next(iter(loader))


def torchdata_state(num_batches: int) -> dict[str, Any]:
    """Return that state. It says nothing of the data's length, so a short data set makes it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Any = StatefulDataLoader(Numbers(2 * BATCH_SIZE), BATCH_SIZE, shuffle=True)
    next(iter(loader))
    state: dict[str, Any] = loader.state_dict()
    state["_sampler_iter_yielded"] = state["_num_yielded"] = num_batches
    batches = state["_sampler_iter_state"]
    batches["samples_yielded"] = num_batches * BATCH_SIZE
    batches["sampler_iter_state"]["yielded"] = num_batches * BATCH_SIZE
    return state


def accelerate(length: int, position: int) -> Any:
    """Jump as a training script for accelerate does."""
    from accelerate import skip_first_batches

    loader: Any = DataLoader(Numbers(length), BATCH_SIZE, shuffle=True)
    return next(iter(skip_first_batches(loader, position // BATCH_SIZE)))


def our_start(length: int, position: int) -> Any:
    """Start an epoch with ours."""
    loader = ResumableDataLoader(Numbers(length), BATCH_SIZE, shuffle=True)
    loader.set_epoch(1)
    return next(iter(loader))


def distributed_start(length: int, position: int) -> Any:
    """Start an epoch with torch's sampler for ranks."""
    sampler: Any = DistributedSampler(Numbers(length), num_replicas=1, rank=0)
    loader: Any = DataLoader(Numbers(length), BATCH_SIZE, sampler=sampler)
    sampler.set_epoch(1)
    return next(iter(loader))


OURS = "ResumableDataLoader"
JUMPS: dict[str, Jump] = {
    OURS: ours,
    "torchdata's StatefulDataLoader": torchdata,
    "accelerate's skip_first_batches": accelerate,
}
STARTS: dict[str, Jump] = {OURS: our_start, "torch's DistributedSampler": distributed_start}


def is_installed(jump: Jump) -> bool:
    """Return whether a way has what it needs."""
    packages = {torchdata: "torchdata", accelerate: "accelerate"}
    return jump not in packages or importlib.util.find_spec(packages[jump]) is not None
