"""The DataModule whose loaders are right by default."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lightning_recipes.data.length_buckets import LengthBuckets
from lightning_recipes.data.lengths import lengths_of
from lightning_recipes.data.loader import ResumableDataLoader
from lightning_recipes.data.shards import data_shard
from lightning_recipes.rng import derive_seed

__all__ = ["BucketsCallable", "RecipeDataModule"]

BucketsCallable = Callable[[NDArray[np.int64]], LengthBuckets]
"""For YAML, too: a ``class_path`` of LengthBuckets with the rest of its arguments."""

# Beyond this, workers cost memory and start-up time and rarely feed a GPU any better.
_MAX_WORKERS = 8


class RecipeDataModule(LightningDataModule, ABC):
    """Base of data modules: a subclass sets data sets, this class makes the loaders.

    The subclass implements :meth:`setup` and sets there ``train_set``, ``val_set``, ``test_set``
    and ``predict_set``, those that it has. Training is shuffled and drops an incomplete last batch;
    evaluation goes in order and drops nothing. All loaders are
    :class:`~lightning_recipes.ResumableDataLoader`: resumable anywhere, sharded over ranks, every
    sample seeded by itself. Under ``ModelParallelStrategy`` ranks that share one copy of the model
    have the same batches.

    Args:
        batch_size: Samples per rank and training batch.
        eval_batch_size: The same for validation, test and prediction; by default ``batch_size``.
        num_workers: Loader processes per rank. ``"auto"`` takes the CPUs this process may use,
            divided by the ranks on this machine, less one for the training itself, at most 8; and 0
            where training runs on the CPU, which leaves no core idle.
        seed: Of the order and of augmentations. It does not select the split.
        collate_fn: Makes a batch of a list of samples, e.g. :class:`~lightning_recipes.PadCollate`.
        buckets: Makes the plan of the training batches from the lengths of the samples, e.g.
            ``functools.partial(LengthBuckets, max_tokens=4096)``; None draws batches from all
            samples. The lengths are those of :func:`~lightning_recipes.lengths_of`: what the data
            set offers as ``.lengths``, or else measured once.

    Raises:
        ValueError: An argument is out of range.
        RuntimeError: A loader is asked for whose data set :meth:`setup` did not set.
    """

    train_set: Dataset[Any] | None = None
    val_set: Dataset[Any] | None = None
    test_set: Dataset[Any] | None = None
    predict_set: Dataset[Any] | None = None

    def __init__(
        self,
        *,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int | Literal["auto"] = "auto",
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        buckets: BucketsCallable | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is the number of samples per rank, >= 1, got {value!r}.")
        if num_workers != "auto" and (type(num_workers) is not int or num_workers < 0):
            raise ValueError(f"num_workers must be >= 0 or 'auto', got {num_workers!r}.")
        derive_seed(seed)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size or batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.collate_fn = collate_fn
        self.buckets = buckets

    @abstractmethod
    def setup(self, stage: str) -> None:
        """Set the data sets of ``stage``: "fit", "validate", "test" or "predict".

        Runs on every rank. Split with :func:`~lightning_recipes.split_indices`, never with a global
        generator.
        """

    def train_dataloader(self) -> ResumableDataLoader:
        """Return the shuffled training loader."""
        buckets = None
        if self.buckets is not None and self.train_set is not None:
            buckets = self.buckets(lengths_of(self.train_set))
        return self._loader(
            "train_set", self.batch_size, shuffle=True, drop_last=True, buckets=buckets
        )

    def val_dataloader(self) -> ResumableDataLoader:
        """Return the validation loader, in order and complete."""
        return self._loader("val_set", self.eval_batch_size)

    def test_dataloader(self) -> ResumableDataLoader:
        """Return the test loader, in order and complete."""
        return self._loader("test_set", self.eval_batch_size)

    def predict_dataloader(self) -> ResumableDataLoader:
        """Return the prediction loader, in order and complete."""
        return self._loader("predict_set", self.eval_batch_size)

    def _loader(self, name: str, batch_size: int, **kwargs: Any) -> ResumableDataLoader:
        dataset = getattr(self, name)
        if dataset is None:
            raise RuntimeError(
                f"{type(self).__name__}.setup() did not set self.{name}, which this stage needs."
            )
        device_type = self.trainer.strategy.root_device.type if self.trainer else "cpu"
        num_workers = self.num_workers
        if num_workers == "auto":
            ranks = self.trainer.num_devices if self.trainer else 1
            num_workers = _auto_num_workers(ranks, device_type)
        if (shard := data_shard(self.trainer)) is not None:
            kwargs["rank"], kwargs["world_size"] = shard
        return ResumableDataLoader(
            dataset,
            batch_size=batch_size,
            seed=self.seed,
            collate_fn=self.collate_fn,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=device_type == "cuda",
            **kwargs,
        )


def _auto_num_workers(ranks_on_this_machine: int, device_type: str) -> int:
    if device_type == "cpu":
        return 0
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_MAX_WORKERS, max(0, (num_cpus or 1) // ranks_on_this_machine - 1))
