"""What is recorded of a run, as plain values."""

from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.optim import Optimizer

from lightning_recipes.certify.digests import digest
from lightning_recipes.data.sampler import CoordinateSampler

__all__ = ["learned", "learning_rates", "plain", "sample_ids", "total_steps"]


def total_steps(trainer: Trainer) -> int | None:
    """Return how many optimizer steps the run will have, None where Lightning cannot tell."""
    # The loaders are there by now, so that asking builds none.
    try:
        steps = trainer.estimated_stepping_batches
    except MisconfigurationException:  # where the accumulation changes with the epoch
        return None
    return int(steps) if 0 <= steps < float("inf") else None


def sample_ids(trainer: Trainer) -> list[list[int]] | None:
    """Return the samples of the batch in hand, loader by loader; None if one does not tell."""
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    samplers = [getattr(loader, "sampler", None) for loader in loaders]
    ids = [s.last_indices() for s in samplers if isinstance(s, CoordinateSampler)]
    return ids if len(ids) == len(loaders) else None


def learning_rates(optimizers: list[Optimizer]) -> dict[str, float]:
    """Return the learning rate of every parameter group."""
    return {
        f"optimizer {i}, group {j}": float(group["lr"])
        for i, optimizer in enumerate(optimizers)
        for j, group in enumerate(optimizer.param_groups)
    }


def learned(trainer: Trainer, pl_module: LightningModule) -> dict[str, dict[str, Any]]:
    """Return digests of ``weights`` (parameters and buffers) and of the ``optimizer`` state."""
    weights = {**dict(pl_module.named_parameters()), **dict(pl_module.named_buffers())}
    names = {id(weight): name for name, weight in weights.items()}
    state: dict[str, Any] = {}
    for i, optimizer in enumerate(trainer.optimizers):
        for j, group in enumerate(optimizer.param_groups):
            options = {k: v for k, v in group.items() if k not in ("params", "lr")}
            state[f"optimizer {i}, group {j}"] = digest(options)
            for k, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"group {j}, parameter {k}")
                for key, value in optimizer.state.get(parameter, {}).items():
                    state[f"optimizer {i}, {name}, {key}"] = digest(value)
    return {"weights": {name: digest(w) for name, w in weights.items()}, "optimizer": state}


def plain(value: Any) -> Any:
    """Return a logged value as JSON knows it; a digest where it does not."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return digest(value)
