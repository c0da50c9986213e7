"""Which parts of a module train: what hooks switch, and no state dict holds."""

from typing import Any

from torch import nn

__all__ = ["capture_modes", "restore_modes"]


def capture_modes(module: nn.Module) -> dict[str, list[str]]:
    """Return the names of what is frozen, in evaluation mode, or tracks no running statistics.

    A hook at the start of an epoch sets them, such as that of Lightning's ``BaseFinetuning``, and
    it is not called again by a run resumed inside the epoch.
    """
    modules = dict(module.named_modules())
    return {
        "frozen": [name for name, p in module.named_parameters() if not p.requires_grad],
        "evaluating": [name for name, part in modules.items() if not part.training],
        "untracked": [name for name, part in modules.items() if _tracks(part) is False],
    }


def restore_modes(module: nn.Module, saved: dict[str, list[str]]) -> None:
    """Switch every part as it was."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in saved["frozen"]):
            parameter.requires_grad_(name not in saved["frozen"])
    for name, part in module.named_modules():
        part.training = name not in saved["evaluating"]
        if _tracks(part) is not None:
            part.track_running_stats = name not in saved["untracked"]


def _tracks(part: nn.Module) -> Any:
    return getattr(part, "track_running_stats", None)
