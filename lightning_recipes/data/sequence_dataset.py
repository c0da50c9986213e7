"""Ragged sequences in one flat array, in memory or in a memory-mapped file."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lightning_recipes.data.flat_array import Source, copy_rows, open_array

__all__ = ["SequenceDataset"]


@final
class SequenceDataset(Dataset[Any]):
    """Sequences of different lengths that lie one after the other in a single array.

    Sample ``i`` is the tensor ``values[offsets[i]:offsets[i + 1]]``, or with ``labels`` the tuple
    of it and ``labels[i]``. A list of a million tensors is a million objects, and each worker ends
    up with a copy of all of them, since counting references writes to their pages. Here there are
    two or three arrays, whatever the number of sequences. What a worker process gets:

    ========================= ====================== ==================
    the argument is           forked worker          spawned worker
    ========================= ====================== ==================
    the path of a ``.npy``    the same pages         the same pages
    a tensor                  the same pages         shared memory
    a numpy array             the same pages         a copy
    ========================= ====================== ==================

    A sample is a copy, made in about a microsecond: changing it in place, as augmentations do,
    changes no data. A memory-mapped data set is pickled as its paths. More columns are further data
    sets: ``torch.utils.data.StackDataset(tokens=..., tags=...)``.

    Args:
        values: The steps of all sequences, shape (N, ...), of any dtype that torch has.
        offsets: Where each sequence begins, and where the last one ends, integers, shape (S + 1,):
            from 0 to N, never falling. Sequences may be empty.
        labels: One row per sequence, shape (S, ...). A label comes as a tensor with its dtype.

    Raises:
        TypeError: A dtype does not fit, or a tensor is not on the CPU.
        ValueError: The offsets do not divide the values, or the labels are not one per sequence.

    Example:
        >>> dataset = SequenceDataset(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
        >>> dataset[0], dataset[1]
        (tensor([1, 2]), tensor([3]))
        >>> dataset.lengths
        array([2, 1])
    """

    def __init__(self, values: Source, offsets: Source, *, labels: Source | None = None) -> None:
        sources = {"values": values, "offsets": offsets, "labels": labels}
        self._paths = {
            name: Path(source).absolute()
            for name, source in sources.items()
            if isinstance(source, str | os.PathLike)
        }
        self.values = open_array(values, "values")
        self.offsets = _open_offsets(offsets)
        self.labels = None if labels is None else open_array(labels, "labels")
        self._check()
        lengths = self.lengths
        if (lengths < 0).any():
            i = int(lengths.argmin())
            raise ValueError(
                f"Offsets never fall, got {self.offsets[i]} and then {self.offsets[i + 1]}, which "
                f"gives sequence {i} a negative length. They are the running sum of the lengths."
            )

    @classmethod
    def from_sequences(
        cls, sequences: Iterable[Any], *, labels: Source | None = None, dtype: Any = None
    ) -> "SequenceDataset":
        """Lay ``sequences`` one after the other in memory.

        Args:
            sequences: Tensors, arrays or lists that agree in everything but their lengths.
            labels: As in the class.
            dtype: The torch dtype of the values; by default that of the sequences.

        Raises:
            ValueError: There is no sequence, or they differ in dtype or in the shape of a step.
        """
        tensors = [
            # torch warns about read-only memory, such as numpy.frombuffer() gives
            torch.as_tensor(
                np.require(sequence, requirements=["C", "W"])
                if isinstance(sequence, np.ndarray)
                else sequence,
                dtype=dtype,
            )
            for sequence in sequences
        ]
        if not tensors:
            raise ValueError("from_sequences() needs at least one sequence, got none.")
        kinds = [(tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors]
        for i, kind in enumerate(kinds):
            if kind != kinds[0] or not tensors[i].ndim:
                raise ValueError(
                    "Sequences have a first axis and agree in dtype and shape of a step; the first "
                    f"has {kinds[0]}, sequence {i} has {kind} and {tensors[i].ndim} axes. An empty "
                    "list has no dtype of its own: say dtype=."
                )
        offsets = np.cumsum([0, *map(len, tensors)], dtype=np.int64)
        return cls(torch.cat(tensors), offsets, labels=labels)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "SequenceDataset":
        """Open what :meth:`save` wrote, memory-mapped: nothing is read before it is asked for."""
        directory = Path(directory)
        labels = directory / "labels.npy"
        return cls(
            directory / "values.npy",
            directory / "offsets.npy",
            labels=labels if labels.exists() else None,
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write ``values.npy``, ``offsets.npy`` and, if there are any, ``labels.npy``.

        Call it in one process, e.g. in ``prepare_data``. The directory appears when it is complete.

        Raises:
            FileExistsError: The directory exists; other processes may have its files mapped.
        """
        directory = Path(directory)
        if directory.exists():
            raise FileExistsError(
                f"save() makes a new directory, got {directory}, which exists. Remove it, or load "
                "what is in it."
            )
        partial = directory.with_name(f".{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name in ("values", "offsets", "labels"):
            column = getattr(self, name)
            if column is not None:
                np.save(partial / f"{name}.npy", np.asarray(column))
        partial.rename(directory)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of every sequence, shape (S,), from the offsets alone."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Any:
        i = range(len(self))[index]  # negative ones count from the end, others are an IndexError
        sequence = copy_rows(self.values[self.offsets[i] : self.offsets[i + 1]])
        if self.labels is None:
            return sequence
        return sequence, copy_rows(self.labels[i : i + 1])[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **dict.fromkeys(self._paths)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, path in self._paths.items():
            column = _open_offsets(path) if name == "offsets" else open_array(path, name)
            setattr(self, name, column)
        self._check()

    def _check(self) -> None:
        if self.offsets.ndim != 1 or not len(self.offsets):
            raise ValueError(f"Offsets have the shape (S + 1,), got {self.offsets.shape}.")
        first, last, num_steps = int(self.offsets[0]), int(self.offsets[-1]), len(self.values)
        if first != 0 or last != num_steps:
            raise ValueError(
                f"Offsets go from 0 to the number of values, {num_steps}, got {first} to {last}. "
                "One sequence more than there are lengths: begin with a 0."
            )
        if self.labels is not None and len(self.labels) != len(self):
            raise ValueError(
                f"There is one label per sequence, got {len(self.labels)} for {len(self)}."
            )


def _open_offsets(source: Source) -> NDArray[np.int64]:
    offsets = np.asarray(open_array(source, "offsets"))
    if offsets.dtype.kind not in "iu":
        raise TypeError(f"offsets are integers, got {offsets.dtype}. Convert them with .astype().")
    return offsets.astype(np.int64, copy=False)
