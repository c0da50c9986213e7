"""Which part of the data a rank sees, where that does not follow from its number alone."""

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy

__all__ = ["data_shard"]


def data_shard(trainer: Trainer | None) -> tuple[int, int] | None:
    """Return ``(part, number of parts)`` of the data, or None where every rank has its own.

    Under ``ModelParallelStrategy`` ranks that share the layers of one copy of the model (tensor
    parallelism) work on the same batch, and only copies of it have different ones. Its default on
    one machine is one copy over all ranks.

    Args:
        trainer: With processes that have been set up, or None.
    """
    if trainer is None or not isinstance(trainer.strategy, ModelParallelStrategy):
        return None
    kwargs = trainer.strategy.distributed_sampler_kwargs
    return int(kwargs["rank"]), int(kwargs["num_replicas"])
