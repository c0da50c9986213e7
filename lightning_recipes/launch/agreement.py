"""One answer from what the code asks of the Trainer and what the launcher has decided."""

from collections.abc import Mapping
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import Strategy

from lightning_recipes.launch.launched import Asked

__all__ = ["agreed"]

# What leaves the choice to Lightning, and so to the launcher.
_OPEN: dict[str, tuple[Any, ...]] = {
    "devices": (None, "auto", -1, "-1"),
    "num_nodes": (None,),
    "strategy": (None, "auto"),
    "precision": (None,),
    "accelerator": (None, "auto"),
}
_PRECISIONS = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}


def agreed(
    given: Mapping[str, Any], launched: Mapping[str, Asked], *, show: str, way_out: str
) -> dict[str, Any]:
    """Return the Trainer's arguments that the launcher decides, to be put over the given ones.

    Args:
        given: The Trainer's arguments, of which those that leave the choice open are no conflict:
            ``devices="auto"``, ``strategy="auto"``, ``precision=None``, ``accelerator="auto"``.
        launched: What :func:`~lightning_recipes.launch.launched.launched` returns.
        show: How an argument is shown in an error, with ``{name}`` and ``{value}``.
        way_out: What an error advises, with ``{name}`` and ``{value}``, the launcher's.

    Raises:
        MisconfigurationException: The two ask for different things.
    """
    decided: dict[str, Any] = {}
    for name, asked in launched.items():
        value = given.get(name)
        if not isinstance(value, list | Strategy) and value in _OPEN[name]:
            decided[name] = asked.value
        elif not _is_same(name, value, asked.value):
            shown = show.format(name=name, value=value)
            advice = way_out.format(name=name, value=asked.value)
            raise MisconfigurationException(f"{shown} under {asked.source}: {advice}.")
        elif name == "devices" and isinstance(asked.value, str):
            decided[name] = asked.value
    return decided


def _is_same(name: str, value: Any, asked: int | str) -> bool:
    if name == "devices":
        ours, theirs = _listed(value), _listed(asked)
        is_other = ours is not None and theirs is not None and ours != theirs
        return not is_other and _num_devices(value) == _num_devices(asked)
    if name == "strategy" and isinstance(value, Strategy):
        return bool(getattr(value, "strategy_name", None) == asked)
    if name == "precision":
        return _PRECISIONS.get(str(value), str(value)) == _PRECISIONS.get(str(asked), str(asked))
    if name == "accelerator" and "gpu" in (value, asked):
        return value != "cpu" and asked != "cpu"
    return bool(value == asked)


def _listed(devices: Any) -> list[int] | None:
    if isinstance(devices, str) and "," in devices:
        return [int(part) for part in devices.split(",") if part.strip()]
    return list(devices) if isinstance(devices, list | tuple) else None


def _num_devices(devices: Any) -> int:
    listed = _listed(devices)
    return int(devices) if listed is None else len(listed)
