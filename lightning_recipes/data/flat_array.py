"""An array of a data set: a tensor, a numpy array, or a memory-mapped file."""

import os
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["FlatArray", "Source", "copy_rows", "open_array"]

FlatArray: TypeAlias = Tensor | NDArray[Any]
Source: TypeAlias = FlatArray | str | os.PathLike[str]


def open_array(source: Source, name: str) -> FlatArray:
    """Return what ``source`` is or, for the path of a ``.npy``, maps; errors call it ``name``."""
    if isinstance(source, Tensor):
        if source.device.type != "cpu":
            raise TypeError(f"{name} must be on the CPU, where samples are loaded: call .cpu().")
        array: FlatArray = source.detach()
    elif isinstance(source, str | os.PathLike):
        # A plain view of the map: slicing a numpy.memmap takes twice as long.
        array = np.load(source, mmap_mode="r").view(np.ndarray)
    else:
        array = np.asarray(source)
    if not isinstance(array, Tensor):
        try:
            torch.from_numpy(np.empty(0, array.dtype))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} must have a dtype that torch has too, got {array.dtype}. Convert them "
                "with .astype()."
            ) from error
    if not array.ndim:
        raise ValueError(f"{name} must have a first axis, got a single number.")
    return array


def copy_rows(rows: FlatArray) -> Tensor:
    """Return a tensor of its own with what ``rows`` has."""
    return rows.clone() if isinstance(rows, Tensor) else torch.from_numpy(rows.copy())
