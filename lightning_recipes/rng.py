"""Seeds that are functions of coordinates, and the state of every generator as plain types.

Two kinds of randomness, two cures. What can be a function of coordinates (the order of the data,
the augmentation of a sample) takes its seed from :func:`derive_seed` and needs no saved state. What
cannot (dropout, noise drawn in the model) is captured with :func:`capture_rng_state` and put back
with :func:`restore_rng_state`.
"""

import operator
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_recipes.host_generators import numpy_generator, python_generator

__all__ = [
    "RNGSnapshot",
    "capture_rng_state",
    "derive_seed",
    "preserve_rng",
    "restore_rng_state",
    "seed_host_generators",
]

_VERSION = 1
_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF
# G. L. Steele and S. Vigna, "Computationally easy, spectrally good multipliers for congruential
# pseudorandom number generators", 2021, https://arxiv.org/abs/2001.05304.
_MULTIPLIER = 0xFC0072FA0B15F4FD
# torch and numpy both run MT19937: the same seed would give them the same stream.
_NUMPY_SALT = 0x9E3779B9


def derive_seed(*coordinates: int) -> int:
    """Return the 63-bit seed that belongs to a point, e.g. ``(seed, epoch, sample index)``.

    A pure function: the same on every machine, in every process, in any order of calls. Points that
    differ have different seeds for every practical purpose; the low 32 bits, all that torch's CPU
    generator uses, are *guaranteed* to differ between any two points that agree up to their last
    three coordinates and differ by less than 1,164 in each of those (8 ranks x 16 workers x 100
    epochs), and between any two that differ only in the last one, by less than 2**32 (the samples
    of an epoch). That is a property of the lattice of the multiplier, not luck. Coordinates that
    differ by 2**32 share them.

    Args:
        *coordinates: Integers in [0, 2**64). The number of them is part of the point: ``(0, 1)``
            is not ``(1,)``.

    Raises:
        TypeError: A coordinate is not an integer.
        ValueError: There is none, or one is out of range.

    Example:
        >>> derive_seed(42, 3, 1_000) == derive_seed(42, 3, 1_000)
        True
        >>> derive_seed(42, 3, 1_000) == derive_seed(42, 4, 1_000)
        False
    """
    if not coordinates:
        raise ValueError("derive_seed() needs at least one coordinate, e.g. derive_seed(seed).")
    point = 1
    for coordinate in coordinates:
        point = (point * _MULTIPLIER + _checked_word(coordinate)) & _MASK_64
    return (_mix_64(point) >> 33) << 32 | _mix_32(point & _MASK_32)


def seed_host_generators(seed: int) -> None:
    """Seed the global generators of python, numpy and torch (CPU), in about 10 microseconds.

    ``torch.manual_seed`` visits every backend and takes ten times as long, so device generators are
    left alone: data is prepared on the host.

    Args:
        seed: A number from :func:`derive_seed`.
    """
    random.seed(seed)
    np.random.seed((seed ^ _NUMPY_SALT) & _MASK_32)  # noqa: NPY002 - the one users draw from
    torch.default_generator.manual_seed(seed)


def capture_rng_state() -> dict[str, Any]:
    """Return the state of every global generator: python, numpy, torch CPU, the current device.

    Plain types and CPU tensors only, so a checkpoint that holds it loads with
    ``torch.load(weights_only=True)``. About 10 KiB, and another 16 bytes for a CUDA device.

    Returns:
        ``{"version", "python", "numpy", "torch", "device"}`` where ``device`` is None without an
        accelerator and else ``{"type", "state"}``.
    """
    return RNGSnapshot.take().plain()


def restore_rng_state(state: dict[str, Any]) -> None:
    """Put every global generator back to what :func:`capture_rng_state` returned.

    All or nothing: every part is tried on a scratch generator before the first global one is
    touched. The state of a device that this process does not have is left out, since nothing here
    can draw from it.

    Raises:
        ValueError: The state has another version, lacks a part, or a part is damaged.
    """
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"An RNG state of version {_VERSION} is needed, got {found!r}. It was not captured by "
            "capture_rng_state(), or by another version of lightning_recipes."
        )
    part = "python"
    try:
        python = _python_state(state[part])
        random.Random().setstate(python)
        part = "numpy"
        numpy = _numpy_state(state[part])
        np.random.RandomState().set_state(numpy)
        part = "torch"
        host = state[part].cpu()
        torch.Generator().set_state(host)
        part = "device"
        device, module = state[part], _device_module()
        if module is None or device is None or device["type"] != module[0]:
            module = None
        else:
            torch.Generator(device["type"]).set_state(device["state"].cpu())
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"The {part} part of the RNG state is missing or damaged ({error}). Nothing was "
            "restored; resume from another checkpoint."
        ) from error
    python_generator.set_state(python)
    numpy_generator.set_state(numpy)
    torch.set_rng_state(host)
    if module is not None:
        # torch takes the state of every generator, a GPU's too, from host memory only.
        module[1].set_rng_state(device["state"].cpu())


@contextmanager
def preserve_rng(*, device: bool = True) -> Iterator[None]:
    """Leave the global generators as they were found, whatever the body draws or seeds.

    Args:
        device: Also the accelerator's. Reading a CUDA generator waits for nothing on the device,
            but a body that runs on the host alone saves the trouble with ``device=False``.
    """
    snapshot = RNGSnapshot.take(device=device)
    try:
        yield
    finally:
        snapshot.put_back()


class RNGSnapshot(NamedTuple):
    """The states of the global generators as their libraries give them: quick to take.

    In 3 microseconds, and 30 more where python's and numpy's were drawn from since the last one.
    """

    torch: Tensor
    device: Tensor | None = None
    python: Any = None
    numpy: dict[str, Any] | None = None

    @classmethod
    def take(cls, *, device: bool = True, python_and_numpy: bool = True) -> "RNGSnapshot":
        """Look at torch's, the accelerator's with ``device``, and python's and numpy's."""
        module = _device_module() if device else None
        device_state = None if module is None else module[1].get_rng_state()
        if not python_and_numpy:
            return cls(torch.get_rng_state(), device_state)
        python, numpy = python_generator.state(), numpy_generator.state()
        return cls(torch.get_rng_state(), device_state, python, numpy)

    def has_moved(self) -> bool:
        """Return whether python's or numpy's generator was drawn from since."""
        then, now = self, RNGSnapshot.take(device=False)
        return then.python != now.python or pickle.dumps(then.numpy) != pickle.dumps(now.numpy)

    def put_back(self) -> None:
        """Give the generators these states."""
        if self.python is not None and self.numpy is not None:
            python_generator.set_state(self.python)
            numpy_generator.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.device is not None:
            module = _device_module()
            assert module is not None  # where the state was taken there is a device
            module[1].set_rng_state(self.device)

    def plain(self) -> dict[str, Any]:
        """Return what :func:`capture_rng_state` returns; what was not taken is as it is now."""
        if self.python is None or self.numpy is None:
            now = RNGSnapshot.take(device=False)
            return self._replace(python=now.python, numpy=now.numpy).plain()
        version, words, gauss = self.python
        module = _device_module()
        device = None
        if self.device is not None and module is not None:
            device = {"type": module[0], "state": self.device.cpu()}
        return {
            "version": _VERSION,
            "python": {"version": version, "words": _to_tensor(words), "gauss": gauss},
            "numpy": {
                "words": _to_tensor(self.numpy["state"]["key"]),
                "position": int(self.numpy["state"]["pos"]),
                "has_gauss": int(self.numpy["has_gauss"]),
                "gauss": float(self.numpy["gauss"]),
            },
            "torch": self.torch,
            "device": device,
        }


def _checked_word(value: int) -> int:
    rule = "A seed or coordinate is an integer in [0, 2**64)"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{rule}, got {value!r} ({type(value).__name__}).")
    word = operator.index(value)
    if not 0 <= word <= _MASK_64:
        raise ValueError(f"{rule}, got {word}.")
    return word


def _mix_64(x: int) -> int:
    """Stafford's variant 13 of the MurmurHash3 finalizer, a bijection (SplitMix64 uses it)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK_64
    return x ^ x >> 31


def _mix_32(x: int) -> int:
    """The MurmurHash3 finalizer, a bijection: distinct words stay distinct."""
    x = (x ^ x >> 16) * 0x85EBCA6B & _MASK_32
    x = (x ^ x >> 13) * 0xC2B2AE35 & _MASK_32
    return x ^ x >> 16


def _to_tensor(words: Any) -> Tensor:
    return torch.from_numpy(np.array(words, dtype=np.uint32).view(np.int32))


def _python_state(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(_to_words(state["words"], 625).tolist()), state["gauss"]


def _numpy_state(state: dict[str, Any]) -> dict[str, Any]:
    # numpy itself does not check the position, and reads past its words.
    if not 0 <= state["position"] <= 624:
        raise ValueError(f"position must be in [0, 624], got {state['position']}")
    return {
        "bit_generator": "MT19937",
        "state": {"key": _to_words(state["words"], 624).copy(), "pos": state["position"]},
        "has_gauss": state["has_gauss"],
        "gauss": float(state["gauss"]),
    }


def _to_words(tensor: Any, size: int) -> Any:
    found = (tensor.dtype, tuple(tensor.shape)) if isinstance(tensor, Tensor) else type(tensor)
    if found != (torch.int32, (size,)):
        raise ValueError(f"an int32 tensor of {size} words is needed, got {found}")
    return tensor.cpu().numpy().view(np.uint32)


def _device_module() -> tuple[str, Any] | None:
    """The accelerator's name and torch module, or None where there is no accelerator."""
    if not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return accelerator.type, torch.get_device_module(accelerator)
