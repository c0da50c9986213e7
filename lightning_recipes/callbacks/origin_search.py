"""Finding out, on all ranks together, where numbers stopped being finite."""

import warnings
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lightning_recipes.callbacks.ranks import gather
from lightning_recipes.callbacks.savepoint import Savepoint
from lightning_recipes.callbacks.window import MicroBatch, Window
from lightning_recipes.gradients import nonfinite_names
from lightning_recipes.nonfinite.capsule import Capsule
from lightning_recipes.nonfinite.error import Origin
from lightning_recipes.nonfinite.finding import Finding, listed
from lightning_recipes.nonfinite.replay import find_again
from lightning_recipes.nonfinite.tracer import find_in_batch, find_in_weights
from lightning_recipes.step_norm import active_scaler

__all__ = ["OriginSearch"]

_MAX_CAPSULES = 10


class OriginSearch:
    """Runs the micro-batches of a step again, every rank its own, and tells everyone.

    Every rank goes through all of them, whatever it finds: a collective inside the training step
    (e.g. of ``SyncBatchNorm``) meets its counterparts.

    Args:
        capsule_dir: Where the first rank's batch in which it began is kept, or None.
    """

    def __init__(self, capsule_dir: str | None) -> None:
        self._capsule_dir = capsule_dir
        self._num_capsules = 0

    def run(
        self, trainer: Trainer, pl_module: LightningModule, window: Window, before: Savepoint
    ) -> list[Origin]:
        """Return the origins by rank, on all ranks: a collective.

        Args:
            trainer: In the middle of an optimizer step.
            pl_module: Its module.
            window: The micro-batches of the step.
            before: Marked before the first of them.
        """
        now = Savepoint(pl_module)
        now.mark(trainer)
        before.roll_back_buffers()
        mine = perhaps = None
        for place, micro_batch in enumerate(window.micro_batches):
            before_this = Savepoint(pl_module, with_metrics=False)
            before_this.mark(trainer)
            findings = self._findings(trainer, pl_module, micro_batch)
            if not findings or mine is not None:
                continue
            origin = Origin(
                rank=trainer.global_rank,
                batch_idx=micro_batch.batch_idx,
                micro_batch=place,
                num_micro_batches=len(window.micro_batches),
                findings=findings,
            )
            if any(finding.is_certain for finding in findings):
                before_this.roll_back_buffers()
                capsule = self._keep(trainer, pl_module, micro_batch, findings)
                mine = replace(origin, capsule=capsule)
            else:
                perhaps = perhaps or origin
        now.roll_back(trainer)
        _reshard(pl_module)
        # Masks, which every rank may have, are for when nobody has anything else.
        return (
            [origin for origin in gather(mine) if origin is not None]
            or self._of_all_ranks(trainer, pl_module)
            or [origin for origin in gather(perhaps) if origin is not None]
        )

    def _findings(
        self, trainer: Trainer, pl_module: LightningModule, micro_batch: MicroBatch
    ) -> list[Finding]:
        if not pl_module.automatic_optimization:
            # Its training step would move the optimizers.
            findings = find_in_batch(micro_batch.batch) + find_in_weights(pl_module)
            losses = [loss for loss in micro_batch.losses if not loss.isfinite().all()]
            return findings + [Finding.in_tensor("loss", "", loss) for loss in losses[:1]]
        scaler = active_scaler(trainer)
        return find_again(
            pl_module,
            micro_batch.batch,
            micro_batch.batch_idx,
            rng=micro_batch.rng.plain(),
            precision=_precision(trainer),
            scale=None if scaler is None else scaler.scale(torch.ones((), device=pl_module.device)),
            # The shards of a parameter get their gradients from hooks, and with a collective.
            backward=not _is_sharded(pl_module),
        )

    def _of_all_ranks(self, trainer: Trainer, pl_module: LightningModule) -> list[Origin]:
        """Name the gradients, which are the same everywhere, where no rank saw anything else."""
        named = {name: parameter.grad for name, parameter in pl_module.named_parameters()}
        names = nonfinite_names(named.items())
        if not names:
            return []
        gradient = named[names[0]]
        assert gradient is not None
        findings = [Finding.in_tensor("gradient", f"of {listed(names)}", gradient)]
        return [Origin(rank=rank, findings=findings) for rank in range(trainer.world_size)]

    def _keep(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        micro_batch: MicroBatch,
        findings: list[Finding],
    ) -> str | None:
        if self._capsule_dir is None or self._num_capsules == _MAX_CAPSULES:
            return None
        scaler = active_scaler(trainer)
        capsule = Capsule(
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            batch_idx=micro_batch.batch_idx,
            rank=trainer.global_rank,
            batch=micro_batch.batch,
            rng=micro_batch.rng.plain(),
            autocast=_autocast(trainer, pl_module),
            loss_scale=None if scaler is None else scaler.get_scale(),
            weights=None if _is_sharded(pl_module) else pl_module.state_dict(),
            findings=findings,
        )
        name = f"step={trainer.global_step:09d}-rank={trainer.global_rank}.pt"
        path = Path(self._capsule_dir, name).absolute()
        try:
            capsule.write(path)
        except (OSError, TypeError, ValueError) as error:
            # The alarm is worth more than its capsule.
            warnings.warn(f"No capsule was written to {path}: {error}.", stacklevel=2)
            return None
        self._num_capsules += 1
        return str(path)


def _precision(trainer: Trainer) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = trainer.precision_plugin.train_step_context()
    return context


def _autocast(trainer: Trainer, pl_module: LightningModule) -> str | None:
    kind = pl_module.device.type
    with _precision(trainer):
        is_on = torch.is_autocast_enabled(kind)
        return str(torch.get_autocast_dtype(kind)).removeprefix("torch.") if is_on else None


def _is_sharded(pl_module: LightningModule) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in pl_module.parameters())


def _reshard(pl_module: LightningModule) -> None:
    """Give up the whole weights that a forward pass gathered, as a backward pass would.

    Or the next forward pass takes them for the newest, which they are not after the coming step.
    """
    for module in pl_module.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
