import dataclasses

import numpy as np
import pytest
import torch

from lightning_recipes.modules.step import Step, cross_entropy_step

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]])
TARGET = np.array([0, 1])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_loss_is_the_mean_of_the_negative_log_softmax(smoothing: float) -> None:
    log_softmax = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    of_target = log_softmax[[0, 1], TARGET]
    expected = -((1 - smoothing) * of_target + smoothing * log_softmax.mean(axis=1)).mean()

    logits, target = torch.tensor(LOGITS), torch.tensor(TARGET)
    step = cross_entropy_step(logits, target, label_smoothing=smoothing)
    assert step.loss.item() == pytest.approx(expected, rel=1e-6)
    assert step.count == 2
    assert step.preds is logits
    assert step.target is target


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_is_computed_in_float32_from_half_precision(dtype: torch.dtype) -> None:
    logits = torch.tensor(LOGITS, dtype=dtype, requires_grad=True)
    loss = cross_entropy_step(logits, torch.tensor(TARGET)).loss
    exact = cross_entropy_step(logits.detach().double(), torch.tensor(TARGET)).loss
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.dtype == dtype


def test_a_step_cannot_be_changed() -> None:
    step = Step(torch.zeros(()), 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.count = 2  # type: ignore[misc]
