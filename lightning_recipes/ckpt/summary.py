"""A checkpoint in a few lines: what a person asks of it before resuming from it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_recipes.ckpt.broken import printable

__all__ = ["summary"]

_RESUME_STATE = "lightning_recipes.ResumeCheckpoint"


def summary(checkpoint: Mapping[str, Any]) -> dict[str, str]:
    """Return what is in a complete Lightning checkpoint, by topic, as text that is safe to print.

    Works from the entries alone; what another version has written otherwise is left out.

    Args:
        checkpoint: As :func:`~lightning_recipes.checkpoints.read_checkpoint` returns it.
    """
    tensors = [value for value in checkpoint["state_dict"].values() if isinstance(value, Tensor)]
    kinds = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    state = checkpoint.get(_RESUME_STATE)
    lines = {
        "step": f"{checkpoint['global_step']:,}",
        "epoch": f"{checkpoint['epoch']:,}",
        "position": _position(checkpoint["loops"], state),
        "lightning": checkpoint["pytorch-lightning_version"],
        "resume state": _resume_state(state),
        "weights": f"{sum(tensor.numel() for tensor in tensors):,} numbers in {len(tensors):,} "
        f"tensors, {num_bytes:,} bytes",
        "dtypes": ", ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common()),
        "optimizers": _optimizers(checkpoint.get("optimizer_states")),
        "schedulers": _count(checkpoint.get("lr_schedulers")),
        "callbacks": _names(checkpoint.get("callbacks")),
        "hyper-parameters": _names(checkpoint.get("hyper_parameters")),
        "random state": _random_state(state),
    }
    return {topic: printable(str(text)) for topic, text in lines.items()}


def _get(value: Any, *keys: str | int) -> Any:
    """Follow keys into nested containers; None where there is no way."""
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def _position(loops: Any, state: Any) -> str:
    seen = _get(loops, "fit_loop", "epoch_loop.batch_progress", "current", "completed")
    position = "not there" if seen is None else f"{seen} batches of the epoch done"
    loaders = _get(state, "ranks", 0, "loaders", "states")
    places = [(_get(place, "epoch"), _get(place, "batch")) for place in loaders or []]
    known = [f"epoch {epoch}, batch {batch}" for epoch, batch in places if batch is not None]
    return position + (f"; the train loader is at {' and '.join(known)}" if known else "")


def _resume_state(state: Any) -> str:
    if not isinstance(state, Mapping):
        return "none: written without ResumeCheckpoint, so a resume is not exact"
    return f"version {_get(state, 'version')}, written {_get(state, 'moment')}"


def _random_state(state: Any) -> str:
    ranks = _get(state, "ranks")
    if not isinstance(ranks, list):
        return "none"
    count = sum(_get(rank, "rng") is not None for rank in ranks)
    devices = Counter(str(_get(rank, "rng", "device", "type") or "no device") for rank in ranks)
    return f"of {count} rank{'s' * (count != 1)}, python, numpy, torch and {', '.join(devices)}"


def _optimizers(states: Any) -> str:
    if not isinstance(states, list):
        return "none"
    return "; ".join(map(_optimizer, states)) or "none"


def _optimizer(state: Any) -> str:
    groups = _get(state, "param_groups")
    if not isinstance(groups, list):
        return "one, in the shards"
    # No class is saved: what it keeps for each parameter tells it well enough.
    per_parameter = _get(state, "state")
    kept = next(iter(per_parameter.values()), None) if isinstance(per_parameter, Mapping) else None
    rates = ", ".join(dict.fromkeys(f"{_get(group, 'lr')}" for group in groups))
    return f"{len(groups)} group{'s' * (len(groups) != 1)}, lr {rates}, keeps {_names(kept)}"


def _count(values: Any) -> str:
    return str(len(values)) if isinstance(values, list) and values else "none"


def _names(values: Any) -> str:
    if not isinstance(values, Mapping):
        return "none"
    return ", ".join(str(name).partition("{")[0] for name in values) or "none"
