"""Run the training step of one batch again, alone."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils._pytree import tree_map

from lightning_recipes.nonfinite.capsule import Capsule
from lightning_recipes.nonfinite.finding import Finding
from lightning_recipes.nonfinite.tracer import find_in_batch, find_in_weights, trace
from lightning_recipes.rng import preserve_rng, restore_rng_state

__all__ = ["find_again", "replay"]


def replay(capsule: str | os.PathLike[str], module: LightningModule) -> list[Finding]:
    """Run the training step of a capsule again and return what is not finite in it.

    For a notebook, on any device: the batch, the random state, the precision and (where they fitted
    into the file) the weights are those of the moment. The gradients of the module are left alone;
    its weights are replaced, and it is left in training mode.

    Args:
        capsule: A file that ``NaNDetector(capsule_dir=...)`` wrote.
        module: A module like the one that was trained.

    Returns:
        The findings, the earliest first; empty if every number is finite this time, e.g. with other
        weights.

    Raises:
        ValueError: The file is no capsule, or its batch has a type that is not imported.
        RuntimeError: The weights do not fit the module.
    """
    kept = Capsule.read(capsule)
    if kept.weights is not None:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name in kept.weights:  # in the precision of the training, e.g. "bf16-true"
                tensor.data = tensor.data.to(kept.weights[name].dtype)
        module.load_state_dict(kept.weights)
    module.train()
    device = module.device
    dtype = None if kept.autocast is None else getattr(torch, kept.autocast)
    precision = nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
    scale = None if kept.loss_scale is None else torch.tensor(kept.loss_scale, device=device)
    return find_again(
        module,
        move_data_to_device(kept.batch, device),
        kept.batch_idx,
        rng=kept.rng,
        precision=precision,
        scale=scale,
    )


def find_again(
    module: LightningModule,
    batch: Any,
    batch_idx: int,
    *,
    rng: dict[str, Any],
    precision: AbstractContextManager[Any],
    scale: Tensor | None = None,
    backward: bool = True,
) -> list[Finding]:
    """Run ``training_step`` on a batch, with nothing logged and the generators put back.

    An exception inside the step is a finding, too.

    Args:
        module: The module itself, not its DDP wrapper: nothing is reduced.
        batch: On the module's device.
        batch_idx: Its number.
        rng: The random state before the step.
        precision: In which the step runs, e.g. autocast.
        scale: What the loss is multiplied by before the backward pass.
        backward: Whether to go back from a finite loss.

    Returns:
        What is not finite, the earliest first: in the batch, in the weights, in the step. Where
        -inf is all that is not finite comes later: it can be a mask, and in a batch will be one.
    """
    copy = tree_map(lambda leaf: leaf, batch)  # the step may take something out of it
    args = (
        (copy, batch_idx)
        if is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        else (copy,)
    )

    def run() -> Any:
        with precision:
            output = module.training_step(*args)
        loss: Any = output["loss"] if isinstance(output, Mapping) else output
        return loss if loss is None or scale is None else loss * scale

    findings = find_in_batch(batch) + find_in_weights(module)
    # A compiled module runs past the hooks of its parts.
    eager = torch.compiler.set_stance("force_eager")
    with eager, preserve_rng(), _nothing_logged(module), torch.enable_grad():
        restore_rng_state(rng)
        findings += trace(module, run, backward=backward)
    return sorted(findings, key=lambda finding: finding.is_masked * (1 + (finding.kind == "batch")))


@contextmanager
def _nothing_logged(module: LightningModule) -> Iterator[None]:
    def ignore(*args: Any, **kwargs: Any) -> None:
        pass

    module.log = module.log_dict = ignore  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.log, module.log_dict
