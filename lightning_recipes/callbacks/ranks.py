"""What ranks say to each other when a checkpoint is written."""

import hashlib
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_recipes.data.shards import data_shard

__all__ = ["capture_own_buffers", "gather", "restore_own_buffers", "stream_rank"]


def gather(mine: Any) -> list[Any]:
    """Return what every rank has, by rank, on all ranks: a collective."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [mine]
    everyones: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyones, mine)
    return everyones


def stream_rank(trainer: Trainer) -> int:
    """Return which random stream is this rank's: those that work on one batch together share one.

    Under tensor parallelism several ranks have the same batch and must drop the same activations.
    """
    shard = data_shard(trainer)
    return trainer.global_rank if shard is None else shard[0]


def capture_own_buffers(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """Return the buffers that differ from rank 0's, whose alone are in a checkpoint: a collective.

    DDP makes them alike before a forward pass, but between batches the running statistics of a
    batch normalisation are each rank's own, and under manual optimization they stay so: DDP (torch
    2.13) then syncs before the first pass only, which its ``require_forward_param_sync`` tells.
    """
    if trainer.world_size == 1:
        return {"own": {}, "is_synced": True}
    # Not the names of state_dict(), which under FSDP gathers all the weights first.
    passing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in pl_module.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {n: b.detach().cpu() for n, b in pl_module.named_buffers() if n not in passing}
    digests = {name: _digest(buffer) for name, buffer in buffers.items()}
    of_rank_0 = gather(digests)[0]
    return {
        "own": {name: b for name, b in buffers.items() if digests[name] != of_rank_0.get(name)},
        "is_synced": getattr(trainer.strategy.model, "require_forward_param_sync", True),
    }


def restore_own_buffers(
    trainer: Trainer, pl_module: LightningModule, saved: dict[str, Any]
) -> None:
    """Put this rank's own buffers back, and whether the next pass makes them alike."""
    for name, buffer in pl_module.named_buffers():
        if name in saved["own"]:
            buffer.copy_(saved["own"][name])
    if not saved["is_synced"]:
        trainer.strategy.model.require_forward_param_sync = False  # type: ignore[union-attr]


def _digest(tensor: Tensor) -> str:
    content = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.tobytes()).hexdigest()
