"""How many processes a machine gets."""

from lightning.pytorch.accelerators import AcceleratorRegistry, CUDAAccelerator, MPSAccelerator

__all__ = ["num_processes"]


def num_processes(devices: str, *, accelerator: str | None = None) -> int:
    """Return the number of devices, for each of which a process is started.

    Args:
        devices: As ``Trainer(devices=...)`` takes it: ``"2"``, ``"0,3"``, ``"-1"`` for all, or
            ``"auto"``: all of an accelerator, and one for CPUs.
        accelerator: As ``Trainer(accelerator=...)`` takes it; None for the best one there is.

    Raises:
        MisconfigurationException: The machine has fewer.
        ValueError: It is no number and no list of numbers.
    """
    if accelerator in (None, "auto", "gpu"):
        fallback = "cuda" if accelerator == "gpu" else "cpu"
        found = [CUDAAccelerator.is_available() and "cuda", MPSAccelerator.is_available() and "mps"]
        accelerator = next((name for name in found if name), fallback)
    kind = AcceleratorRegistry[accelerator]["accelerator"]
    if devices == "auto":
        return int(kind.auto_device_count())
    parsed = kind.parse_devices(devices)
    return parsed if isinstance(parsed, int) else len(parsed or ())
