"""What the ranks of a run have to have in common, and in what they have to differ."""

import math
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data.distributed import DistributedSampler

from lightning_recipes.data.loader import ResumableDataLoader
from lightning_recipes.data.shards import data_shard

__all__ = ["RankFacts", "differences", "facts_of_data", "facts_of_model", "node_lines"]

_SETTINGS = (
    *("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val"),
    *("check_val_every_n_epoch", "precision", "num_nodes"),
)
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What one rank says of itself.

    Attributes:
        host: Its machine.
        device: Its device, in words.
        common: What has to be the same on all ranks, by name, in plain types.
        part: Which part of the data is its own; ranks of one part have the same batches.
        first_batches: The sample indices of the first batch of each train loader that tells them.
    """

    host: str
    device: str
    common: dict[str, Any]
    part: int = 0
    first_batches: list[list[int]] = field(default_factory=list)


def facts_of_model(trainer: Trainer, pl_module: LightningModule) -> RankFacts:
    """Return what is known before the strategy wraps the model, and waits for all ranks to do so.

    Without weights: those of a rank that was not seeded are its own until DDP makes them alike.
    """
    named = {**dict(pl_module.named_parameters()), **dict(pl_module.named_buffers())}
    common: dict[str, Any] = {
        "world size": trainer.world_size,
        **{f"trainer.{name}": value for name, value in _settings(trainer).items()},
        **{f"model {name}": f"{tuple(t.shape)} {t.dtype}" for name, t in named.items()},
    }
    for title, owner in (("module", pl_module), ("datamodule", _datamodule(trainer))):
        common |= dict(_flat(f"{title}.hparams", dict(getattr(owner, "hparams", {}))))
    return RankFacts(host=socket.gethostname(), device=_device(trainer), common=common)


def facts_of_data(trainer: Trainer, pl_module: LightningModule) -> RankFacts:
    """Return what is known at the start of training: weights, optimizers, loaders."""
    common: dict[str, Any] = {
        "train batches of an epoch": trainer.num_training_batches,
        "batches of each validation loader": list(trainer.num_val_batches),
    }
    for index, optimizer in enumerate(trainer.optimizers):
        common[f"optimizer {index}"] = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            options = {**group, "params": len(group["params"])}
            common |= dict(_flat(f"optimizer {index}, group {number}", options))
    common |= _weights(trainer, pl_module)
    train_loaders = CombinedLoader(trainer.train_dataloader).flattened
    val_loaders = CombinedLoader(trainer.val_dataloaders or []).flattened
    for stage, loaders in (("train", train_loaders), ("val", val_loaders)):
        for number, loader in enumerate(loaders):
            # Others may have split the data themselves; these share out one order of all of it.
            if isinstance(getattr(loader, "sampler", None), DistributedSampler):
                common[f"length of {stage} data set {number}"] = len(loader.dataset)
    shard = data_shard(trainer)
    return RankFacts(
        host=socket.gethostname(),
        device=_device(trainer),
        common=common,
        part=trainer.global_rank if shard is None else shard[0],
        first_batches=[
            loader.next_indices()
            for loader in train_loaders
            if isinstance(loader, ResumableDataLoader)
        ],
    )


def differences(ranks: Sequence[RankFacts], *, ignore: Sequence[str] = ()) -> list[str]:
    """Return what is wrong among the ranks, in words; nothing if all is well.

    Args:
        ranks: By rank.
        ignore: Beginnings of the names of what may differ.
    """
    names = dict.fromkeys(name for facts in ranks for name in facts.common)
    names = {name: None for name in names if not name.startswith(tuple(ignore))}
    found = []
    for name in names:
        values = [facts.common.get(name, "(none)") for facts in ranks]
        if any(value != values[0] for value in values):
            why = _WHY if "batches" in name else ""
            found.append(f"{name}: {_by_value(values)}{why}")
    for loader in range(min(len(facts.first_batches) for facts in ranks)):
        found += _overlaps(loader, ranks)
    return found


def node_lines(ranks: Sequence[RankFacts]) -> list[str]:
    """Return a line for each machine: its name, its ranks, their devices."""
    nodes: dict[str, list[int]] = defaultdict(list)
    for rank, facts in enumerate(ranks):
        nodes[facts.host].append(rank)
    return [
        f"{host}: ranks {_listed(members)}; {', '.join(ranks[rank].device for rank in members)}"
        for host, members in nodes.items()
    ]


_WHY = " (a rank with fewer batches would leave the others waiting for it)"


def _settings(trainer: Trainer) -> dict[str, Any]:
    return {name: getattr(trainer, name) for name in _SETTINGS}


def _datamodule(trainer: Trainer) -> Any:
    return trainer.datamodule  # type: ignore[attr-defined]


def _device(trainer: Trainer) -> str:
    device = trainer.strategy.root_device
    name = f" {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return f"{device}{name}"


def _flat(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Yield what can be compared: numbers and words, and of anything else its kind."""
    if isinstance(value, Mapping):
        for key in value:
            yield from _flat(f"{name}.{key}", value[key])
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flat(f"{name}[{index}]", item)
    elif isinstance(value, Tensor) and value.numel() == 1:
        yield name, value.item()
    else:
        is_plain = isinstance(value, bool | int | float | str | None)
        # A NaN is unlike itself.
        is_nan = isinstance(value, float) and math.isnan(value)
        yield name, "nan" if is_nan else value if is_plain else type(value).__name__


@torch.no_grad()
def _weights(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """Return a number for each parameter that every rank has whole.

    The sum of its bits, one pass on its device and one wait for all of them: weights of another
    random state have another.
    """
    own = getattr(trainer.strategy.model, "parameters_to_ignore", ())  # DDP's, by request
    whole = {
        name: parameter.detach()
        for name, parameter in pl_module.named_parameters()
        if not isinstance(parameter, DTensor) and name not in own
    }
    sums = {
        name: weight.contiguous().view(_WIDTHS[weight.element_size()]).sum()
        for name, weight in whole.items()
        if weight.numel() and weight.element_size() in _WIDTHS and weight.layout == torch.strided
    }
    if not sums:
        return {}
    device = next(iter(sums.values())).device
    numbers = torch.stack([number.to(device) for number in sums.values()]).tolist()
    return {f"weights of {name}": number for name, number in zip(sums, numbers, strict=True)}


def _overlaps(loader: int, ranks: Sequence[RankFacts]) -> Iterable[str]:
    first: dict[int, int] = {}
    seen: dict[int, int] = {}
    for rank, facts in enumerate(ranks):
        indices = facts.first_batches[loader]
        if facts.part in first:
            other = first[facts.part]
            if indices != ranks[other].first_batches[loader]:
                yield (
                    f"first batch of train loader {loader}: ranks {other} and {rank} share a copy "
                    "of the model and have different samples. Give ResumableDataLoader rank and "
                    "world_size of the data-parallel mesh, as RecipeDataModule does"
                )
            continue
        first[facts.part] = rank
        common = [index for index in indices if index in seen]
        if common:
            yield (
                f"first batch of train loader {loader}: ranks {seen[common[0]]} and {rank} have "
                f"{len(common)} samples in common, e.g. {common[0]}. Leave rank and world_size of "
                "ResumableDataLoader out"
            )
        seen |= dict.fromkeys(indices, rank)


def _by_value(values: Sequence[Any]) -> str:
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, value in enumerate(values):
        ranks[repr(value)].append(rank)
    return ", ".join(
        f"{value} on rank{'s' * (len(members) > 1)} {_listed(members)}"
        for value, members in ranks.items()
    )


def _listed(ranks: Sequence[int]) -> str:
    is_run = len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]} to {ranks[-1]}" if is_run else ", ".join(map(str, ranks))
