import itertools
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch import Tensor

from lightning_recipes import GradientNormMonitor, NaNDetector, RecipeModule, step_norm
from lightning_recipes.gradients import total_norm
from tests.by_hand import (
    NUM_BATCHES,
    ByHand,
    Plain,
    Recipe,
    fit,
    float16,
    make_trainer,
    norm,
    rows_by_hand,
)


class Passes:
    """Counts how often the norm of a step is computed, and keeps it."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def __call__(self, *args: Any) -> Tensor:
        result = total_norm(*args)
        self.norms.append(result.item())
        return result


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    counted = Passes()
    monkeypatch.setattr(step_norm, "total_norm", counted)
    return counted


NAMES = ("detector", "monitor", "by module")
SUBSETS_IN_EACH_ORDER = [
    names for size in range(4) for names in itertools.permutations(NAMES, size)
]


def make_readers(names: tuple[str, ...]) -> list[Callback]:
    made: dict[str, Callback] = {
        "detector": NaNDetector(),
        "monitor": GradientNormMonitor(),
        "by module": GradientNormMonitor(by_module=1, update_ratio=True),
    }
    return [made[name] for name in names]


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("names", SUBSETS_IN_EACH_ORDER, ids="-".join)
def test_it_is_computed_once_for_all_readers(
    passes: Passes, names: tuple[str, ...], clip: float | None
) -> None:
    options: dict[str, Any] = {"accumulate_grad_batches": 4, "gradient_clip_val": clip}
    fit(None, *make_readers(names), module=Recipe(), **options)
    expected = [row["grad_norm"] for row in rows_by_hand(**options)] if names or clip else []
    assert passes.norms == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_it_is_computed_once_in_float16_too(passes: Passes, fused: bool) -> None:
    def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, fused=fused)

    options = {"gradient_clip_val": 0.5, **float16(1024.0)}
    fit(None, *make_readers(NAMES), module=Recipe(sgd), **options)
    assert len(passes.norms) == 2 * NUM_BATCHES


def test_two_optimizers_by_hand_have_one_each(passes: Passes) -> None:
    fit(None, *make_readers(("detector", "monitor")), module=ByHand())
    expected = [row[f"grad_norm/{m}"] for row in rows_by_hand() for m in ("body", "head")]
    assert passes.norms == pytest.approx(expected, rel=1e-4)


class Evaluations(Callback):
    """The gradients of each evaluation of a closure, before and after clipping."""

    def __init__(self) -> None:
        self.before: list[float] = []
        self.after: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.before.append(self.norm(pl_module))

    @staticmethod
    def norm(module: LightningModule) -> float:
        return norm([p.grad for p in module.parameters() if p.grad is not None], 2.0)


class Searching(Recipe):
    """LBFGS evaluates its closure several times in a step."""

    def __init__(self, evaluations: Evaluations) -> None:
        super().__init__()
        self.evaluations = evaluations

    def configure_optimizers(self) -> torch.optim.Optimizer:
        parameters = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.LBFGS(parameters, lr=0.01, max_iter=4)

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        super().configure_gradient_clipping(*args, **kwargs)
        self.evaluations.after.append(self.evaluations.norm(self))


@pytest.mark.parametrize("names", [(), ("monitor",), ("detector", "monitor")])
def test_lbfgs_clips_each_evaluation_with_its_own_norm(
    passes: Passes, names: tuple[str, ...]
) -> None:
    evaluations = Evaluations()
    module = Searching(evaluations)
    fit(None, *make_readers(names), evaluations, module=module, max_steps=3, gradient_clip_val=0.5)
    assert len(evaluations.before) > 6
    assert passes.norms == pytest.approx(evaluations.before, rel=1e-5)
    expected = [min(0.5, value) for value in evaluations.before]
    assert evaluations.after == pytest.approx(expected, rel=1e-4)


def pretend(monkeypatch: pytest.MonkeyPatch, strategy: type[Any]) -> Trainer:
    """Return a trainer with this type of strategy, which does not run on a CPU."""
    trainer, flat = make_trainer(None), object.__new__(strategy)
    monkeypatch.setattr(Trainer, "strategy", property(lambda trainer: flat))
    return trainer


@pytest.mark.parametrize("reader", [NaNDetector, GradientNormMonitor])
@pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy])
def test_gradients_in_flat_pieces_are_refused(
    monkeypatch: pytest.MonkeyPatch, reader: type[Callback], strategy: type[Any]
) -> None:
    trainer = pretend(monkeypatch, strategy)
    message = f"{reader.__name__} needs gradients .* {strategy.__name__} .* fully_shard"
    with pytest.raises(MisconfigurationException, match=message):
        reader().setup(trainer, Plain(), "fit")
    reader().setup(trainer, Plain(), "validate")


@pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy])
def test_flat_pieces_are_clipped_by_the_strategy(
    monkeypatch: pytest.MonkeyPatch, strategy: type[Any]
) -> None:
    module, calls = Recipe(), []
    module.trainer = pretend(monkeypatch, strategy)
    monkeypatch.setattr(RecipeModule, "clip_gradients", lambda self, *args: calls.append(args))
    optimizer = torch.optim.SGD(module.parameters())
    module.configure_gradient_clipping(optimizer, 0.5, "norm")
    assert calls == [(optimizer, 0.5, "norm")]
