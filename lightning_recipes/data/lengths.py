"""How long every sample of a data set is, at best without loading one."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_recipes.data.cached_dataset import CachedDataset
from lightning_recipes.data.containers import fields
from lightning_recipes.data.seeded_dataset import SeededDataset
from lightning_recipes.rng import preserve_rng

__all__ = ["lengths_of"]

Lengths = NDArray[np.int64]

_measured: "weakref.WeakKeyDictionary[Any, dict[str | None, Lengths]]" = weakref.WeakKeyDictionary()


def lengths_of(dataset: Dataset[Any], *, field: str | None = None) -> Lengths:
    """Return the length of every sample, int64, shape (S,), read-only.

    That is what a loader needs which groups samples of similar length. Without ``field``, a data
    set that has ``.lengths`` is asked, such as :class:`~lightning_recipes.SequenceDataset`, also
    inside ``Subset``, ``ConcatDataset`` and :class:`~lightning_recipes.CachedDataset`. Any other is
    gone through once, with a progress bar on a terminal, and the result is kept for as long as the
    data set lives. For a large one, keep the lengths beside the data and offer them as
    ``.lengths``.

    While measuring, every sample is seeded as in epoch 0 of a loader with seed 0, so all ranks
    agree even where a random crop decides the length; the global generators are put back.

    Args:
        dataset: Map-style, with ``__len__``.
        field: Whose length: a path as in :class:`~lightning_recipes.PadCollate`, e.g. ``"tokens"``,
            ``"0"``, ``"meta.tokens"``. By default the first field of a sample that is a tensor,
            array or list with a first axis. Name it where that is an image or another field that
            is no sequence.

    Raises:
        ValueError: A sample has no such field, or it has no first axis; or ``.lengths`` are not one
            integer >= 0 per sample.

    Example:
        >>> lengths_of([{"id": 7, "tokens": [1, 2, 3]}, {"id": 8, "tokens": [4]}])
        array([3, 1])
    """
    lengths = _known(dataset) if field is None else None
    if lengths is None:
        lengths = _remembered(dataset, field)
    lengths.flags.writeable = False
    return lengths


def _known(dataset: Any) -> Lengths | None:
    """Return the lengths that some data set inside ``dataset`` offers, or None."""
    # Exactly these types: a subclass may load its samples in another way.
    kind = type(dataset)
    if kind is Subset:
        whole = _known(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    if kind is ConcatDataset:
        parts = [_known(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None
    if kind in (CachedDataset, SeededDataset):
        return _known(dataset.dataset)
    if not hasattr(dataset, "lengths"):
        return None
    lengths = np.asarray(dataset.lengths)
    if lengths.shape != (len(dataset),) or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise ValueError(
            f"The .lengths of a data set are one integer >= 0 per sample, got {lengths.dtype} of "
            f"shape {lengths.shape} from a {kind.__name__} of {len(dataset)}. Name a field= "
            "to have the samples measured instead."
        )
    return lengths.astype(np.int64)


def _remembered(dataset: Any, field: str | None) -> Lengths:
    try:
        by_field = _measured.setdefault(dataset, {})
    except TypeError:  # a list has no weak references: it cannot be told when it is gone
        by_field = {}
    lengths = by_field.get(field)
    if lengths is None or len(lengths) != len(dataset):
        lengths = by_field[field] = _measure(dataset, field)
    return lengths


def _measure(dataset: Any, field: str | None) -> Lengths:
    lengths = np.empty(len(dataset), dtype=np.int64)
    seeded = SeededDataset(dataset)
    with preserve_rng(device=False):
        for i in _progress(len(dataset)):
            found = dict(fields(seeded[i]))
            if field is None:
                # The same in all samples: the second of one must not be mixed with the first.
                field = next((path for path in found if _has_first_axis(found[path])), None)
            if field is None or field not in found or not _has_first_axis(found[field]):
                wanted = "one" if field is None else repr(field)
                raise ValueError(
                    "The length of a sample is that of a field with a first axis (a tensor, array "
                    f"or list); sample {i} has the fields {sorted(found)}, but {wanted} is not "
                    "there or has no axis. Name another with field=."
                )
            lengths[i] = len(found[field])
    return lengths


def _has_first_axis(field: Any) -> bool:
    if isinstance(field, torch.Tensor | np.ndarray):
        return field.ndim > 0
    return isinstance(field, list)


def _progress(num_samples: int) -> Iterator[int]:
    # Only here: importing it takes a tenth of the time that the whole package does.
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(
        range(num_samples),
        description="Measuring the lengths of the samples",
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
