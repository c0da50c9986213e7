"""The gradient of ``weight_by="count"`` is that of all items computed at once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_recipes import (
    NaNDetector,
    PadCollate,
    Padded,
    RecipeModule,
    ResumableDataLoader,
    ResumeCheckpoint,
    Step,
)
from tests.ranks import run_trainer_ranks

LENGTHS = [1, 9, 2, 7, 3, 3, 8, 1, 5, 4, 6, 2, 9, 1, 1, 7]
LEARNING_RATE = 0.1

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


class Sequences(Dataset[Tensor]):
    """Sequences of 3 features, a target beside them."""

    def __init__(self, lengths: list[int], *, bad: int | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.items = [torch.randn(length, 4, generator=generator) for length in lengths]
        if bad is not None:
            self.items[bad][0, 0] = float("nan")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:
        return self.items[index]


class TokenRegressor(RecipeModule):
    """Mean squared error over the real tokens."""

    def __init__(self, weight_by: Any = "count", optimizer: Any = None) -> None:
        sgd = lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE)  # noqa: E731
        super().__init__(optimizer=optimizer or sgd, weight_by=weight_by)
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def step(self, batch: Padded) -> Step:
        inputs, target = batch.values[..., :3], batch.values[..., 3:]
        errors = (self.network(inputs).float() - target).square()[batch.mask]
        return Step(errors.mean(), batch.mask.sum())


def fit(batch_size: int, module: RecipeModule | None = None, **options: Any) -> RecipeModule:
    module = module or TokenRegressor()
    lengths, bad = options.pop("lengths", LENGTHS), options.pop("bad", None)
    loader_options = {"collate_fn": PadCollate(), **options.pop("loader", {})}
    ckpt_path = options.pop("ckpt_path", None)
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(**{**defaults, **options})
    loader = ResumableDataLoader(Sequences(lengths, bad=bad), batch_size, **loader_options)
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return module


def weights(module: LightningModule) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def by_hand(windows: list[list[int]]) -> Tensor:
    """Return the weights after gradient descent on the mean over the tokens of each window."""
    module, sequences = TokenRegressor().double(), Sequences(LENGTHS)
    for window in windows:
        tokens = torch.cat([sequences[i] for i in window]).double()
        loss = (module.network(tokens[:, :3]) - tokens[:, 3:]).square().mean()
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.sub_(LEARNING_RATE * gradient)
    return weights(module).float()


def cut(size: int) -> list[list[int]]:
    return [list(range(i, min(i + size, 16))) for i in range(0, 16, size)]


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "window"), [(16, 1, 16), (4, 1, 4), (2, 4, 8), (1, 16, 16)]
)
def test_equals_the_window_computed_at_once(batch_size: int, accumulate: int, window: int) -> None:
    module = fit(batch_size, accumulate_grad_batches=accumulate)
    torch.testing.assert_close(weights(module), by_hand(cut(window)), rtol=1e-6, atol=1e-6)


def test_a_leftover_window_is_a_mean_as_well() -> None:
    module = fit(2, accumulate_grad_batches=3)
    torch.testing.assert_close(weights(module), by_hand(cut(6)), rtol=1e-6, atol=1e-6)


def test_by_batch_a_token_of_a_short_batch_weighs_more() -> None:
    module = fit(2, TokenRegressor("batch"), accumulate_grad_batches=8)
    assert not torch.allclose(weights(module), by_hand(cut(16)), atol=1e-3)


def _on_rank(root: str) -> dict[str, Tensor]:
    ddp: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    skip = NaNDetector(policy="skip")
    return {
        "two ranks": weights(fit(2, accumulate_grad_batches=4, **ddp)),
        "filler": weights(fit(2, lengths=LENGTHS[:5], **ddp)),
        "skip": weights(fit(4, bad=5, callbacks=[skip], **ddp)),
    }


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    return run_trainer_ranks(_on_rank, str(tmp_path_factory.mktemp("ranks")))


def test_two_ranks_and_a_window_equal_one_big_batch(on_ranks: list[dict[str, Tensor]]) -> None:
    for found in on_ranks:
        torch.testing.assert_close(found["two ranks"], by_hand([[*range(16)]]), rtol=0, atol=1e-6)


def test_a_batch_that_evens_out_the_ranks_weighs_nothing(on_ranks: list[dict[str, Tensor]]) -> None:
    expected = by_hand([[0, 1, 2, 3], [4]])
    for found in on_ranks:
        torch.testing.assert_close(found["filler"], expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:(?s).*This optimizer step is skipped")
def test_a_dropped_window_leaves_nothing_behind(on_ranks: list[dict[str, Tensor]]) -> None:
    expected = by_hand([[*range(8, 16)]])
    for found in on_ranks:
        torch.testing.assert_close(found["skip"], expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:(?s).*This optimizer step is skipped")
def test_the_batch_that_is_looked_at_again_is_not_counted_again() -> None:
    skip = NaNDetector(policy="skip")
    module = fit(2, bad=5, accumulate_grad_batches=4, callbacks=[skip])
    torch.testing.assert_close(weights(module), by_hand([[*range(8, 16)]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_float16_stays_in_range(fused: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE, fused=fused)  # noqa: E731
    lengths = [400, *LENGTHS[1:]]
    half = fit(
        2, TokenRegressor(optimizer=sgd), lengths=lengths, plugins=plugin, gradient_clip_val=1.0
    )
    full = fit(2, lengths=lengths, gradient_clip_val=1.0)
    torch.testing.assert_close(weights(half), weights(full), rtol=0, atol=2e-3)
    assert scaler.get_scale() == 2.0**8


def test_a_resumed_run_has_the_same_bits_though_it_begins_with_another_batch(
    tmp_path: Path,
) -> None:
    def run(root: Path, ckpt_path: str | None = None) -> Tensor:
        keeper = ResumeCheckpoint(every_n_steps=1, keep_last=None)
        return weights(fit(2, callbacks=[keeper], default_root_dir=str(root), ckpt_path=ckpt_path))

    whole = run(tmp_path)
    for step in range(1, 8):
        path = tmp_path / "resume" / f"step={step:09d}.ckpt"
        assert torch.equal(run(tmp_path / str(step), str(path)), whole)


def test_a_window_without_any_item_changes_nothing() -> None:
    class Empty(TokenRegressor):
        def step(self, batch: Padded) -> Step:
            errors = self.network(batch.values[..., :3])[batch.mask & False]
            return Step(errors.mean(), 0)

    before = weights(Empty())
    assert torch.equal(weights(fit(4, Empty())), before)


def test_needs_automatic_optimization() -> None:
    class ByHand(TokenRegressor):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(MisconfigurationException, match="automatic_optimization=False"):
        fit(4, ByHand())


def test_a_choice_is_named() -> None:
    with pytest.raises(ValueError, match=r"weight_by must be one of .*'count'.*, got 'token'"):
        TokenRegressor("token")
