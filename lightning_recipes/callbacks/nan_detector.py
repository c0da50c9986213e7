"""The first number that is not finite: caught, named, and kept out of the weights."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lightning_recipes.callbacks.checkpoint_guard import CheckpointGuard
from lightning_recipes.callbacks.origin_search import OriginSearch
from lightning_recipes.callbacks.overflows import Overflows
from lightning_recipes.callbacks.ranks import gather
from lightning_recipes.callbacks.savepoint import Savepoint
from lightning_recipes.callbacks.step_log import log_at_step
from lightning_recipes.callbacks.taken_steps import drop_step
from lightning_recipes.callbacks.unseen_steps import UnseenSteps
from lightning_recipes.callbacks.window import Window, is_bad_loss
from lightning_recipes.gradients import total_norm
from lightning_recipes.nonfinite.capsule import check_folder
from lightning_recipes.nonfinite.error import NonFiniteError
from lightning_recipes.step_norm import (
    active_scaler,
    check_gradients_are_whole,
    forget_step_norm,
    gradient_scale,
    optimized_parameters,
    step_norm,
)

__all__ = ["NaNDetector"]

Policy = Literal["raise", "skip", "warn"]
Check = Literal["loss", "gradients"]

_VERSION = 1
_NOT_FINITE = "The loss or the gradients are not finite"


class NaNDetector(Callback):
    """Find out before an optimizer step whether its loss and gradients are finite, on all ranks.

    The verdict is the gradient norm, which clipping and
    :class:`~lightning_recipes.GradientNormMonitor` need as well and which is computed once. A loss
    that is not finite makes the gradients so (where its own backward pass would not, it is passed
    on to them), and through DDP's reduction those of every rank; so all ranks know of it at the
    same step without a word said. The price is one number fetched from the device every
    ``every_n_steps``.

    After an alarm, and only then, the micro-batches of the step are run once more with the same
    random state and with hooks on all modules, to name the batch field, the parameters, the
    activation, the loss or the gradients with which it began, and the rank. All ranks do that
    together; buffers, generators, metrics and ``self.log`` are left as they were. What else the
    training step changes is changed twice.

    =========== ====================================================================================
    policy      what follows
    =========== ====================================================================================
    ``"raise"`` :class:`~lightning_recipes.NonFiniteError` on all ranks, before the step is taken.
    ``"skip"``  The whole accumulation window is dropped on all ranks: weights, optimizer state,
                buffers, metrics and epoch means are as if it had not been. The error comes after
                ``max_skips`` in a row. ``WarmupCosineLR`` does not count the step. (A GradScaler
                counts it as an overflow.)
    ``"warn"``  A warning at the first of several in a row; the step is taken.
    =========== ====================================================================================

    ============================ ===================================================================
    logged key                   when it changes, at the number of the optimizer step
    ============================ ===================================================================
    ``nonfinite/skipped_steps``  steps dropped so far by ``"skip"``
    ``nonfinite/overflows``      steps skipped so far by the scaler of float16, of those looked at
    ============================ ===================================================================

    Under float16 with a GradScaler, gradients that are not finite beside a finite loss are an
    overflow, which the scaler is there to answer: no alarm, unless the scale has fallen below
    ``min_loss_scale`` or ``max_overflows`` came in a row, which means that it collapsed.

    While it is attached, no checkpoint is written whose parameters are not finite (or whose buffers
    hold a NaN): the attempt is an error under every policy, and the older files stay.

    Works on any LightningModule. Under manual optimization there is no replay, and ``"skip"`` is
    refused. In validation, where no weight changes, a logged metric that is not finite is a
    warning. Not found: what reaches neither a loss nor a gradient, until a checkpoint is written.

    Args:
        policy: What to do.
        max_skips: At how many bad steps in a row ``"skip"`` raises.
        check: What to look at: ``"loss"``, ``"gradients"`` or both.
        every_n_steps: Look at every n-th optimizer step only, and fetch nothing in between. What
            happened there is found up to n - 1 steps later, with a scaler at the end of the epoch
            or before a checkpoint: the step is named, its batch is gone, and so ``"skip"`` needs 1.
        capsule_dir: Where to keep what :func:`~lightning_recipes.replay` needs to see it again: the
            batch itself, so the files are for the owner only; at most 10 of each rank and fit.
        min_loss_scale: The loss scale under which float16 has collapsed.
        max_overflows: How many overflows in a row mean the same.

    Raises:
        ValueError: An argument is out of range, or ``capsule_dir`` cannot be written.
        MisconfigurationException: At the start of ``fit``: the strategy keeps gradients in flat
            pieces (FSDP, DeepSpeed), or ``"skip"`` is asked of manual optimization.
        NonFiniteError: As the policy says.
    """

    def __init__(
        self,
        *,
        policy: Policy = "raise",
        max_skips: int = 10,
        check: Sequence[Check] = ("loss", "gradients"),
        every_n_steps: int = 1,
        capsule_dir: str | None = None,
        min_loss_scale: float = 1.0,
        max_overflows: int = 20,
    ) -> None:
        if policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {get_args(Policy)}, got {policy!r}.")
        if isinstance(check, str) or not check or not set(check) <= set(get_args(Check)):
            raise ValueError(f"check must hold one or both of {get_args(Check)}, got {check!r}.")
        for name, value in (("max_skips", max_skips), ("every_n_steps", every_n_steps)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}.")
        if policy == "skip" and every_n_steps > 1:
            raise ValueError(
                f'policy="skip" needs every_n_steps=1, got {every_n_steps}: a step that is not '
                "looked at cannot be dropped."
            )
        self.policy = policy
        self.max_skips = max_skips
        self.check = tuple(check)
        self.every_n_steps = every_n_steps
        self.capsule_dir = capsule_dir
        self.skipped_steps = 0
        self._skips_in_a_row = 0
        self._is_warned = False
        self._overflows = Overflows(min_loss_scale=min_loss_scale, max_overflows=max_overflows)
        self._unseen = UnseenSteps()
        self._window = Window()
        self._savepoint: Savepoint | None = None
        self._search: OriginSearch | None = None
        self._guard = CheckpointGuard()
        self._metrics_before: dict[str, Tensor] = {}

    @property
    def overflows(self) -> int:
        """Steps skipped so far by the scaler of float16, of those looked at."""
        return self._overflows.count

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "version": _VERSION,
            "skipped_steps": self.skipped_steps,
            "skips_in_a_row": self._skips_in_a_row,
            "overflows": self._overflows.count,
            "overflows_in_a_row": self._overflows.in_a_row,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.skipped_steps = state_dict["skipped_steps"]
        self._skips_in_a_row = state_dict["skips_in_a_row"]
        self._overflows.count = state_dict["overflows"]
        self._overflows.in_a_row = state_dict["overflows_in_a_row"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work, before time is spent."""
        if stage != "fit":
            return
        check_gradients_are_whole(trainer, "NaNDetector")
        if self.policy == "skip" and not pl_module.automatic_optimization:
            raise MisconfigurationException(
                'NaNDetector(policy="skip") drops a step before the optimizer takes it, and under '
                "manual optimization the module takes it itself. Use another policy, or skip there."
            )
        if self.capsule_dir is not None:
            check_folder(self.capsule_dir)
        self._search = OriginSearch(self.capsule_dir)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stand guard over the checkpoints."""
        self._window.clear()
        self._unseen.forget()
        self._is_warned = False
        self._savepoint = Savepoint(pl_module, with_metrics=self.policy == "skip")
        self._guard.install(trainer, pl_module, before=lambda: self._look_back(trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep what it takes to run the batch again, if its step will be looked at."""
        if not self._is_checked(trainer):
            return
        is_by_hand = not pl_module.automatic_optimization
        if is_by_hand or batch_idx % trainer.accumulate_grad_batches == 0:
            self._window.clear()
            assert self._savepoint is not None
            self._savepoint.mark(trainer, is_new_epoch=batch_idx == 0)
        self._window.add(batch, batch_idx)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Let the gradients know of a loss that is not finite: 0 * inf is NaN, 0 * 1 nothing."""
        value = loss.detach()
        self._window.note_loss(value)
        if "loss" not in self.check:
            return
        if self.every_n_steps > 1 and active_scaler(trainer) is not None:
            # Between two looks the norm cannot tell it from an overflow.
            is_bad = is_bad_loss(value, is_scaled=True).any()
            self._unseen.note(torch.where(is_bad, math.nan, 0.0), trainer.global_step)
        if loss.requires_grad:
            loss.register_hook(lambda gradient: gradient + 0.0 * value)  # type: ignore[no-untyped-call]

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """There are new gradients."""
        forget_step_norm(trainer)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at the norm, and act before the step."""
        self._window.close()
        norm = step_norm(trainer, optimizer)
        verdict = norm
        if self.every_n_steps > 1 and active_scaler(trainer) is None:
            verdict = self._unseen.note(norm, trainer.global_step)
        if not self._is_checked(trainer):
            return
        if math.isfinite(verdict.item()):
            self._end_row()
        else:
            self._answer(trainer, pl_module, optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Let go of the batches of a step that was made."""
        is_full = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if is_full or trainer.is_last_batch or not pl_module.automatic_optimization:
            self._window.clear()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember what was logged before: training has its own alarm."""
        self._metrics_before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn of metrics that are not finite."""
        if trainer.sanity_checking:
            return
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if value is not self._metrics_before.get(name)
        }
        names = [name for name, value in metrics.items() if not math.isfinite(value)]
        if names:
            rank_zero_warn(
                f"After the validation at step {trainer.global_step} of epoch "
                f"{trainer.current_epoch} these metrics are not finite: {', '.join(names)}."
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the steps since the last look."""
        self._look_back(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Wait for nobody any more: other ranks may be gone. Lightning calls no teardown."""
        self._guard.is_in_exception = True
        self._let_go()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave nothing behind."""
        if stage == "fit":
            self._guard.remove(trainer)
            self._let_go()

    def _let_go(self) -> None:
        self._window.clear()
        self._unseen.forget()
        self._metrics_before.clear()
        self._savepoint = self._search = None

    def _is_checked(self, trainer: Trainer) -> bool:
        # Several optimizers, by hand: a step of each counts as one.
        step = trainer.global_step // max(len(trainer.optimizers), 1)
        return (step + 1) % self.every_n_steps == 0

    def _answer(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        first_bad = self._first_unseen()
        if first_bad is not None and first_bad < trainer.global_step:
            self._answer_late(trainer, first_bad)
            return
        self._unseen.forget()
        scaler = active_scaler(trainer)
        is_loss_finite = all(gather(self._is_loss_finite(is_scaled=scaler is not None)))
        gradients = [parameter.grad for parameter in optimized_parameters(optimizer)]
        if is_loss_finite and math.isfinite(float(total_norm(gradients, math.inf))):
            self._end_row()  # their squares alone were too large for float32
        elif is_loss_finite and scaler is not None:
            self._answer_overflow(trainer, pl_module, scaler.get_scale())
        elif is_loss_finite and "gradients" not in self.check:
            return
        elif self.policy == "warn":
            self._warn(trainer, pl_module)
        elif self.policy == "raise":
            self._raise(trainer, pl_module, _NOT_FINITE)
        else:
            self._skip(trainer, pl_module, optimizer)

    def _end_row(self) -> None:
        self._skips_in_a_row = self._overflows.in_a_row = 0
        self._is_warned = False

    def _first_unseen(self) -> int | None:
        return None if self.every_n_steps == 1 else self._unseen.first_bad()

    def _look_back(self, trainer: Trainer) -> None:
        first_bad = self._first_unseen()
        if first_bad is not None:
            self._answer_late(trainer, first_bad)

    def _answer_late(self, trainer: Trainer, step: int) -> None:
        is_taken = active_scaler(trainer) is None
        text = (
            f"The loss or the gradients were not finite at optimizer step {step}, which lies "
            f"between two looks, every {self.every_n_steps} steps: "
            f"{'the weights have had it' if is_taken else 'the scaler has skipped it'}, and the "
            f"batch is gone. Newest checkpoint: {self._guard.last_path or 'none yet'}. Resume "
            "with every_n_steps=1 to see where it begins."
        )
        if self.policy == "raise":
            raise NonFiniteError(text, step=step, epoch=trainer.current_epoch)
        if not self._is_warned:
            rank_zero_warn(text)
        self._is_warned = True
        self._unseen.forget()

    def _answer_overflow(self, trainer: Trainer, pl_module: LightningModule, scale: float) -> None:
        collapse = self._overflows.add(scale)
        log_at_step(trainer, {"nonfinite/overflows": self.overflows}, trainer.global_step)
        if collapse is None:
            return
        if self.policy == "warn":
            self._warn(trainer, pl_module, collapse)
        else:
            self._raise(trainer, pl_module, collapse)

    def _raise(self, trainer: Trainer, pl_module: LightningModule, text: str) -> None:
        assert self._savepoint is not None
        error = self._error(trainer, pl_module, text)
        # What is left is the module of the step before, e.g. to look at in a notebook.
        self._savepoint.roll_back_buffers()
        raise error

    def _warn(self, trainer: Trainer, pl_module: LightningModule, text: str = _NOT_FINITE) -> None:
        if not self._is_warned:
            rank_zero_warn(str(self._error(trainer, pl_module, text)))
        self._is_warned = True

    def _skip(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        assert self._savepoint is not None
        self.skipped_steps += 1
        self._skips_in_a_row += 1
        if self._skips_in_a_row >= self.max_skips:
            text = f"{_NOT_FINITE}, for {self.max_skips} steps in a row (max_skips)"
            self._raise(trainer, pl_module, text)
        error = self._error(trainer, pl_module, _NOT_FINITE)
        rank_zero_warn(f"{error}\nThis optimizer step is skipped ({self.skipped_steps} so far).")
        log_at_step(trainer, {"nonfinite/skipped_steps": self.skipped_steps}, trainer.global_step)
        self._savepoint.roll_back(trainer)
        drop_step(optimizer, is_scaled=gradient_scale(trainer, optimizer) is not None)

    def _is_loss_finite(self, *, is_scaled: bool) -> bool:
        return all(
            micro_batch.is_loss_finite(is_scaled=is_scaled)
            for micro_batch in self._window.micro_batches
        )

    def _error(self, trainer: Trainer, pl_module: LightningModule, text: str) -> NonFiniteError:
        assert self._search is not None
        assert self._savepoint is not None
        origins = self._search.run(trainer, pl_module, self._window, self._savepoint)
        lines = [f"{text} (optimizer step {trainer.global_step}, epoch {trainer.current_epoch})."]
        lines += [str(origin) for origin in origins]
        lines += [f"Newest checkpoint of this run: {self._guard.last_path or 'none yet'}."]
        return NonFiniteError(
            "\n".join(lines),
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            origins=origins,
        )
