"""What only a GPU can show."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_recipes import (
    GradientNormMonitor,
    LossScaleMonitor,
    NaNDetector,
    PadCollate,
    Padded,
    RecipeModule,
    ResumableDataLoader,
    ResumeCheckpoint,
    Step,
    cross_entropy_step,
    verify,
)
from tests.by_hand import Recipe, fit
from tests.project import PointsDataModule, make_module, make_trainer

pytestmark = pytest.mark.gpu

ONE_GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def run(root: Path, ckpt_path: Path | None = None, **options: Any) -> dict[str, Tensor]:
    trainer = make_trainer(root, **{**ONE_GPU, **options})
    module = make_module()
    data = PointsDataModule(batch_size=4, seed=5, num_workers=0)
    trainer.fit(module, data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return {name: value.cpu() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_dropout_on_the_gpu_goes_on_where_it_was(tmp_path: Path, precision: str) -> None:
    whole = run(tmp_path / "whole", precision=precision)
    for step in (3, 6, 11):
        saved = tmp_path / "whole" / "resume" / f"step={step:09d}.ckpt"
        torch.cuda.manual_seed(step)  # what the process has drawn meanwhile
        assert same(run(tmp_path / str(step), saved, precision=precision), whole), step


class NoWaiting(Callback):
    """Makes every wait for the GPU an error, between the third batch and the last but one."""

    def __init__(self) -> None:
        self.num_batches = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        is_on = 3 <= batch_idx < int(trainer.num_training_batches) - 1
        torch.cuda.set_sync_debug_mode("error" if is_on else "default")
        self.num_batches += is_on


class Wide(RecipeModule):
    """Large enough to be seen in the memory; about 67 MB of weights."""

    def __init__(self, width: int = 4096) -> None:
        super().__init__(optimizer=partial(torch.optim.SGD, lr=1e-3))
        seed_everything(3, verbose=False)
        self.network = nn.Sequential(nn.Linear(8, width), nn.Linear(width, width))

    def step(self, batch: Any) -> Step:
        points, target = batch
        return cross_entropy_step(self.network(points), target)


def points(num: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(num, 8, generator=generator), torch.arange(num) % 2)


def test_between_logging_steps_nothing_waits_for_the_gpu(tmp_path: Path) -> None:
    no_waiting = NoWaiting()
    watch = (NaNDetector(every_n_steps=1000), GradientNormMonitor(by_module=1, update_ratio=True))
    trainer = make_trainer(
        tmp_path,
        *watch,
        no_waiting,
        max_epochs=1,
        log_every_n_steps=1000,
        gradient_clip_val=1.0,
        **ONE_GPU,
    )
    trainer.callbacks[0].every_n_steps = 1000  # type: ignore[attr-defined]
    loader = ResumableDataLoader(points(64), 4, shuffle=True, pin_memory=True)
    try:
        trainer.fit(Wide(64), loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert no_waiting.num_batches == 12


def test_padded_batches_are_pinned_and_moved_without_waiting() -> None:
    samples: Any = [torch.arange(float(n)) for n in (3, 1, 2, 5)]
    loader = ResumableDataLoader(samples, 2, collate_fn=PadCollate(), pin_memory=True)
    expected = list(ResumableDataLoader(samples, 2, collate_fn=PadCollate()))
    for batch, plain in zip(loader, expected, strict=True):
        assert isinstance(batch, Padded)
        assert batch.values.is_pinned()
        assert batch.lengths.is_pinned()
        torch.cuda.set_sync_debug_mode("error")
        try:
            moved = move_data_to_device(batch, torch.device("cuda"))
            mask = moved.mask
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert isinstance(moved, Padded)
        assert moved.values.is_cuda
        assert torch.equal(moved.values.cpu(), plain.values)
        assert torch.equal(mask.cpu(), plain.mask)


def float16(init_scale: float) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cuda", init_scale=init_scale)
    return {"plugins": MixedPrecision("16-mixed", "cuda", scaler), **ONE_GPU}


@pytest.mark.parametrize("fused", [False, True])
def test_overflows_of_a_real_scaler_are_no_alarm(tmp_path: Path, fused: bool) -> None:
    detector = NaNDetector()
    module = Recipe(partial(torch.optim.AdamW, fused=fused))
    options = float16(2.0**24)
    trainer, rows = fit(
        tmp_path, detector, LossScaleMonitor(), GradientNormMonitor(), module=module, **options
    )
    assert 0 < detector.overflows < trainer.global_step
    scaler = trainer.precision_plugin.scaler  # type: ignore[attr-defined]
    assert scaler.get_scale() == 2.0 ** (24 - detector.overflows)
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    is_finite = [math.isfinite(row["grad_norm"]) for row in rows if "grad_norm" in row]
    assert is_finite.count(False) == detector.overflows


def test_a_fused_optimizer_is_clipped_on_the_true_scale_of_float16() -> None:
    weights = []
    for options in (ONE_GPU, float16(1024.0)):
        module = Recipe(partial(torch.optim.AdamW, fused=True))
        fit(None, module=module, gradient_clip_val=0.5, **options)
        weights.append({name: value.cpu() for name, value in module.state_dict().items()})
    # float16 has 11 bits
    torch.testing.assert_close(weights[0], weights[1], rtol=0.02, atol=5e-3)


def peak_bytes(*callbacks: Callback) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=list(callbacks),
        **ONE_GPU,
    )
    trainer.fit(Wide(), DataLoader(points(16), batch_size=4))
    return torch.cuda.max_memory_allocated()


def test_watching_takes_no_memory_of_the_gpu() -> None:
    peak_bytes()  # cuBLAS takes its workspace once
    plain = peak_bytes()
    assert peak_bytes(NaNDetector(), GradientNormMonitor()) < plain + 2**20
    num_bytes = sum(p.numel() * p.element_size() for p in Wide().parameters())
    # one copy of the weights and one of their change, as it says
    ratio = GradientNormMonitor(update_ratio=True, every_n_steps=1)
    assert peak_bytes(ratio) < plain + 2.5 * num_bytes


class InShards(RecipeModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_module().network

    def step(self, batch: Any) -> Step:
        inputs, target = batch
        return cross_entropy_step(self.network(inputs), target)


@pytest.fixture
def _own_group() -> Iterator[None]:
    """Leave no process group to other tests."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_own_group")
@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_fsdp_resumes_exactly(tmp_path: Path, kind: Any) -> None:
    """Lightning offers it on GPUs only."""

    def train(root: Path, ckpt_path: Path | None = None) -> list[Tensor]:
        module = InShards()
        trainer = Trainer(
            strategy=FSDPStrategy(state_dict_type=kind),
            default_root_dir=str(root),
            callbacks=[ResumeCheckpoint(every_n_steps=1, keep_last=None)],
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **ONE_GPU,
        )
        data = PointsDataModule(batch_size=4, seed=5, num_workers=0)
        trainer.fit(module, data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
        return [parameter.detach().cpu() for parameter in module.parameters()]

    whole = train(tmp_path / "whole")
    for step in (3, 8):
        saved = tmp_path / "whole" / "resume" / f"step={step:09d}.ckpt"
        assert saved.is_dir() == (kind == "sharded")
        verify(saved)
        assert all(map(torch.equal, train(tmp_path / str(step), saved), whole))


@pytest.mark.usefixtures("_own_group")
@pytest.mark.parametrize("reader", [NaNDetector, GradientNormMonitor])
def test_fsdp_is_refused_by_those_who_need_whole_gradients(reader: type[Callback]) -> None:
    trainer = Trainer(
        strategy=FSDPStrategy(),
        callbacks=[reader()],
        logger=False,
        enable_checkpointing=False,
        **ONE_GPU,
    )
    with pytest.raises(MisconfigurationException, match="FSDPStrategy each rank has a flat piece"):
        trainer.fit(InShards(), PointsDataModule(batch_size=4))
