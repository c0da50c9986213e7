"""What docs/comparison.md says of other packages, where it is cheap to look again."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.by_hand import float16
from tests.commands import ROOT
from tests.ranks import run_trainer_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11, torch 2.13
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Using `DistributedSampler` with the dataloaders"),
]

PAGE = (ROOT / "docs/comparison.md").read_text()
ROWS = {line.split("|")[1].strip() for line in PAGE.splitlines() if line.startswith("|")}
NUM_BATCHES = 8


def cell(row: str, peer: str) -> str:
    """Return what to do if a peer does not do any more what the page says."""
    assert row in ROWS
    return f"{peer} now behaves otherwise: change row {row!r} of docs/comparison.md."


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the exception of a call, its kind and its text; nothing if there is none."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_tests_it_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), (file, name)


# --- a run that is resumed ------------------------------------------------------------------------


class Numbers(Dataset[tuple[float, float]]):
    """Two numbers to a batch: 0..15, and an augmentation."""

    def __init__(self, num_samples: int = 2 * NUM_BATCHES) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[float, float]:
        if index >= self.num_samples:
            raise IndexError
        return float(index), float(torch.rand(()))


class Watcher(LightningModule):
    """Remembers its batches, draws, epoch means and validations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[list[float]] = []
        self.draws: list[float] = []
        self.means: list[float] = []
        self.num_validated = 0

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen.append(batch[0].tolist())
        self.draws.append(float(torch.rand(())))
        self.log("mean", batch[0].mean().float(), on_step=False, on_epoch=True, batch_size=2)
        return self.loss(batch)

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = self.layer(batch[0].float()[:, None] / 16).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.num_validated += 1
        self.log("val", batch[0].mean().float(), batch_size=len(batch[0]))

    def on_train_epoch_end(self) -> None:
        if "mean" in self.trainer.callback_metrics:
            self.means.append(float(self.trainer.callback_metrics["mean"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    root: Path,
    loader: Any,
    *callbacks: Callback,
    module: Watcher | None = None,
    resume_at: int | None = None,
    validate: bool = False,
    **options: Any,
) -> Watcher:
    seed_everything(1, verbose=False)
    module = module or Watcher()
    every_step = ModelCheckpoint(root, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    trainer = Trainer(
        accelerator="cpu",
        callbacks=list(callbacks) or [every_step],
        default_root_dir=str(root),
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        num_sanity_val_steps=0,
        **{"max_epochs": 3, **options},
    )
    path = None if resume_at is None else str(root / f"step={resume_at}.ckpt")
    validation = DataLoader(Numbers(4), batch_size=2) if validate else None
    trainer.fit(module, loader, validation, ckpt_path=path)
    return module


def plain(num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=2, num_workers=num_workers, **options)


def stateful(num_workers: int = 0, **options: Any) -> Any:
    return StatefulDataLoader(Numbers(), batch_size=2, num_workers=num_workers, **options)


def numbers(batches: list[Any]) -> list[Any]:
    return [batch[0].tolist() for batch in batches]


def augmentations(batches: list[Any]) -> list[Any]:
    return [batch[1].tolist() for batch in batches]


@pytest.fixture
def tmp_run(tmp_path: Path) -> tuple[Path, Watcher]:
    """A run over a shuffled loader that has a position, and its files."""
    return tmp_path, fit(tmp_path, stateful(shuffle=True))


def test_lightning_with_a_plain_loader_begins_the_epoch_again(tmp_path: Path) -> None:
    whole = fit(tmp_path, plain())
    resumed = fit(tmp_path, plain(), resume_at=3)
    # five batches are left of the epoch, and they are the first five
    assert resumed.seen[:6] == [*whole.seen[:5], [0, 1]], cell("position in the data", "Lightning")


def test_lightning_keeps_the_position_and_the_order_of_a_stateful_loader(
    tmp_run: tuple[Path, Watcher],
) -> None:
    root, whole = tmp_run
    resumed = fit(root, stateful(shuffle=True), resume_at=3)
    assert resumed.seen == whole.seen[3:], cell("position in the data", "Lightning")
    # the uninterrupted run goes on from where its generator is, the resumed one from its seed
    assert resumed.draws[0] != whole.draws[3], cell("random state", "Lightning")


def test_lightning_skips_the_epoch_after_one_that_a_file_ends(
    tmp_run: tuple[Path, Watcher],
) -> None:
    root, _ = tmp_run
    resumed = fit(root, stateful(shuffle=True), resume_at=NUM_BATCHES)
    row = "file of an epoch's last batch"
    assert len(resumed.seen) == NUM_BATCHES, cell(row, "Lightning")  # of two epochs


def test_lightning_loses_the_position_to_whoever_asks_for_the_horizon(
    tmp_run: tuple[Path, Watcher],
) -> None:
    class Asks(Watcher):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches == 3 * NUM_BATCHES
            return super().configure_optimizers()

    root, whole = tmp_run
    resumed = fit(root, stateful(shuffle=True), module=Asks(), resume_at=3)
    assert resumed.seen[:5] != whole.seen[3:8], cell("position in the data", "Lightning")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning_with_workers_takes_epoch_0s_order_after_a_resume(
    num_workers: int, tmp_path: Path
) -> None:
    def loader() -> Any:
        sampler: DistributedSampler[Any] = DistributedSampler(Numbers(), num_replicas=1, rank=0)
        return plain(num_workers, sampler=sampler)

    whole = fit(tmp_path, loader())
    resumed = fit(tmp_path, loader(), resume_at=NUM_BATCHES)
    epoch = 0 if num_workers else 1
    expected = whole.seen[epoch * NUM_BATCHES :][:NUM_BATCHES]
    assert resumed.seen[:NUM_BATCHES] == expected, cell("order of the shuffle", "Lightning")


def test_lightning_forgets_the_means_of_the_epoch(tmp_path: Path) -> None:
    assert fit(tmp_path, stateful()).means == [7.5] * 3
    resumed = fit(tmp_path, stateful(), resume_at=3)
    # of 6..15, and then of 0..15
    assert resumed.means == [10.5, 7.5, 7.5], cell("means of the epoch", "Lightning")


def test_lightning_skips_the_validation_due_at_a_save(tmp_path: Path) -> None:
    options: dict[str, Any] = {"validate": True, "val_check_interval": 4}
    whole = fit(tmp_path, stateful(), **options)
    assert whole.num_validated == 6 * 2
    resumed = fit(tmp_path, stateful(), resume_at=4, **options)
    # nothing was validated before step 4
    assert resumed.num_validated == 5 * 2, cell("validation due at the save", "Lightning")


def test_lightnings_early_stopping_misses_its_metric(tmp_path: Path) -> None:
    def callbacks() -> list[Callback]:
        at_validation_end = ModelCheckpoint(
            tmp_path, save_top_k=-1, filename="{step}", save_on_train_epoch_end=False
        )
        return [EarlyStopping("val", patience=100), at_validation_end]

    fit(tmp_path, stateful(), *callbacks(), validate=True)
    options: dict[str, Any] = {"validate": True, "resume_at": NUM_BATCHES}
    error = error_of(fit, tmp_path, stateful(), *callbacks(), **options)
    row = "early stopping"
    assert "metric `val` which is not available" in error, cell(row, "Lightning")


def test_lightning_does_not_step_a_plateau_in_the_resumed_epoch(tmp_path: Path) -> None:
    class Plateau(Watcher):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return [optimizer], [{"scheduler": plateau, "interval": "epoch", "monitor": "val"}]

    def rate(**options: Any) -> float:
        module = fit(tmp_path, stateful(), module=Plateau(), validate=True, **options)
        found: float = module.trainer.optimizers[0].param_groups[0]["lr"]
        return found

    # the metric never improves: halved at the end of the second and of the third epoch
    assert rate() == 0.025
    assert rate(resume_at=NUM_BATCHES + 3) == 0.05, cell("plateau scheduler", "Lightning")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdata_keeps_order_and_position_and_not_the_augmentation(num_workers: int) -> None:
    torch.manual_seed(1)
    loader = stateful(num_workers, shuffle=True)
    iterator = iter(loader)
    assert len({tuple(next(iterator)[0].tolist()) for _ in range(3)}) == 3
    state = loader.state_dict()
    rest = list(iterator)
    again = stateful(num_workers, shuffle=True)
    again.load_state_dict(state)
    resumed = list(again)
    assert numbers(resumed) == numbers(rest), cell("order of the shuffle", "torchdata")
    row = "augmentation of a sample"
    assert augmentations(resumed) != augmentations(rest), cell(row, "torchdata")


def test_torchdata_has_an_empty_epoch_after_the_last_batch() -> None:
    loader = stateful()
    iterator = iter(loader)
    for _ in range(NUM_BATCHES):
        next(iterator)
    again = stateful()
    again.load_state_dict(loader.state_dict())
    lengths = [len(list(again)), len(list(again))]
    assert lengths == [0, NUM_BATCHES], cell("file of an epoch's last batch", "torchdata")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchdata_goes_on_with_as_many_workers_only(num_workers: int) -> None:
    loader = stateful(2)
    next(iter(loader))
    other = stateful(num_workers)
    other.load_state_dict(loader.state_dict())
    row = "other number of ranks or workers"
    assert "AssertionError" in error_of(list, other), cell(row, "torchdata")


# --- what Lightning does with numbers, files, ranks and signals -----------------------------------


def test_lightning_does_not_look_for_another_file(tmp_run: tuple[Path, Watcher]) -> None:
    root, _ = tmp_run
    newest = root / f"step={3 * NUM_BATCHES}.ckpt"
    newest.write_bytes(newest.read_bytes()[:1000])
    error = error_of(fit, root, stateful(shuffle=True), resume_at=3 * NUM_BATCHES)
    assert "Error" in error, cell("truncated newest file", "Lightning")


def test_lightning_trains_on_with_nan(tmp_path: Path) -> None:
    class Breaks(Watcher):
        def loss(self, batch: list[Tensor]) -> Tensor:
            return super().loss(batch) * (float("nan") if self.global_step == 4 else 1)

    module = fit(tmp_path, stateful(), module=Breaks())
    assert len(module.seen) == 3 * NUM_BATCHES, cell("what is checked", "Lightning")
    newest = torch.load(tmp_path / f"step={3 * NUM_BATCHES}.ckpt", weights_only=True)
    assert newest["state_dict"]["layer.weight"].isnan(), cell("files with NaN weights", "Lightning")


@pytest.mark.filterwarnings("ignore:.*`lr_scheduler.step\\(\\)` before `optimizer.step\\(\\)`")
def test_lightnings_schedulers_count_the_steps_that_a_scaler_skips(tmp_path: Path) -> None:
    class Overflows(Watcher):
        def loss(self, batch: list[Tensor]) -> Tensor:
            return super().loss(batch) * 1e30

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            falling = LambdaLR(optimizer, lambda step: 1 / (step + 1))
            return [optimizer], [{"scheduler": falling, "interval": "step"}]

    module = Overflows()
    before = module.layer.weight.item()
    fit(tmp_path, stateful(), module=module, max_epochs=1, **float16())
    assert module.layer.weight.item() == before
    rate = module.trainer.optimizers[0].param_groups[0]["lr"]
    expected = pytest.approx(0.1 / (1 + NUM_BATCHES))
    assert rate == expected, cell("steps skipped by GradScaler", "Lightning")


def test_torchs_warmup_and_cosine_climb_again() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    parts = [LinearLR(optimizer, 0.25, total_iters=4), CosineAnnealingLR(optimizer, 6)]
    rates = _rates(optimizer, SequentialLR(optimizer, parts, [4]))
    # (1 + cos(pi * (k - 4) / 6)) / 2
    expected = [1, 0.933, 0.75, 0.5, 0.25, 0.067, 0, 0.067, 0.25, 0.5]
    assert rates[4:14] == pytest.approx(expected, abs=1e-3), cell("past the horizon", "Lightning")


@pytest.mark.filterwarnings("ignore:.*call of `lr_scheduler.step\\(\\)`")
def _rates(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
    rates = []
    for _ in range(14):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_lightning_ends_with_0_at_a_sigterm_and_saves_nothing(tmp_path: Path) -> None:
    class Stopped(Watcher):
        def loss(self, batch: list[Tensor]) -> Tensor:
            if self.global_step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().loss(batch)

    with pytest.raises(SystemExit) as end:
        fit(tmp_path, stateful(), ModelCheckpoint(tmp_path), module=Stopped())
    assert not end.value.code, cell("exit code", "Lightning")
    assert not list(tmp_path.glob("*.ckpt")), cell("what is saved", "Lightning")


def validate_on_a_rank() -> list[float]:
    seen: list[float] = []

    class Validated(Watcher):
        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            seen.extend(batch[0].tolist())

    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        strategy="ddp",
    )
    trainer.validate(Validated(), DataLoader(Numbers(7), batch_size=2), verbose=False)
    return seen


@pytest.mark.slow
def test_lightning_repeats_samples_to_even_out_the_ranks() -> None:
    seen = run_trainer_ranks(validate_on_a_rank)
    # 0 comes twice: seven samples make four for each
    assert seen == [[0, 2, 4, 6], [1, 3, 5, 0]], cell("every sample counts once", "Lightning")


# --- transformers ---------------------------------------------------------------------------------


class Dicts(Numbers):
    """The same, as transformers' Trainer wants it."""

    def __getitem__(self, index: int) -> Any:
        number, augmentation = super().__getitem__(index)
        return {"x": torch.tensor([number]), "a": torch.tensor([augmentation])}


class Network(nn.Module):
    """Remembers its batches and draws; its loss is NaN in one step."""

    def __init__(self, nan_at: int | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[list[float]] = []
        self.augmentations: list[list[float]] = []
        self.draws: list[float] = []
        self.nan_at = nan_at

    def forward(self, x: Tensor, a: Tensor, labels: Any = None) -> Any:
        if not self.training:
            return {"loss": x.mean() + 0 * self.layer(x).sum(), "logits": x}
        self.seen.append(x.flatten().tolist())
        self.augmentations.append(a.flatten().tolist())
        self.draws.append(float(torch.rand(())))
        loss = self.layer(x / 16).square().mean()
        return {"loss": loss * float("nan") if len(self.seen) == self.nan_at else loss}


def train_with_transformers(
    root: Path,
    callbacks: Any = (),
    network: Network | None = None,
    resume: Any = None,
    **options: Any,
) -> tuple[Network, Any]:
    transformers = pytest.importorskip("transformers")
    transformers.set_seed(1)
    network = network or Network()
    arguments = transformers.TrainingArguments(
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_steps=1,
        num_train_epochs=3,
        output_dir=str(root),
        per_device_train_batch_size=2,
        remove_unused_columns=False,
        report_to=[],
        save_steps=1,
        save_strategy="steps",
        use_cpu=True,
        **options,
    )
    trainer = transformers.Trainer(
        network,
        arguments,
        train_dataset=Dicts(),
        eval_dataset=Dicts(4),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume)
    return network, trainer


@pytest.mark.parametrize("num_workers", [0, 2])
def test_transformers_trainer_resumes_all_but_the_augmentation(
    num_workers: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"dataloader_num_workers": num_workers}
    whole, _ = train_with_transformers(tmp_path, **options)
    saved = str(tmp_path / "checkpoint-3")
    resumed, _ = train_with_transformers(tmp_path / "resumed", resume=saved, **options)
    peer = "Trainer"
    assert resumed.seen == whole.seen[3:], cell("order of the shuffle", peer)
    assert resumed.augmentations[0] != whole.augmentations[3], cell(
        "augmentation of a sample", peer
    )
    # augmentation in the main process draws from the same generator
    assert (resumed.draws == whole.draws[3:]) == (num_workers > 0), cell("random state", peer)


def test_transformers_trainer_logs_a_number_in_place_of_nan(tmp_path: Path) -> None:
    network, trainer = train_with_transformers(tmp_path, network=Network(nan_at=5))
    assert len(network.seen) == 3 * NUM_BATCHES
    assert network.layer.weight.isnan().all(), cell("what is checked", "Trainer")
    newest = tmp_path / f"checkpoint-{3 * NUM_BATCHES}"
    assert newest.is_dir(), cell("files with NaN weights", "Trainer")
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[4:] == [0.0] * (3 * NUM_BATCHES - 4), cell("NaN in the logged loss", "Trainer")


def test_transformers_trainer_does_not_look_for_another_file(tmp_path: Path) -> None:
    train_with_transformers(tmp_path)
    newest = tmp_path / f"checkpoint-{3 * NUM_BATCHES}" / "optimizer.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    error = error_of(train_with_transformers, tmp_path, resume=True)
    assert "RuntimeError" in error, cell("truncated newest file", "Trainer")


def test_transformers_cosine_climbs_again() -> None:
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    rates = _rates(optimizer, transformers.get_cosine_schedule_with_warmup(optimizer, 4, 10))
    expected = [0, 0.25, 0.5, 0.75, 1, 0.933, 0.75, 0.5, 0.25, 0.067, 0, 0.067, 0.25, 0.5]
    assert rates == pytest.approx(expected, abs=1e-3), cell("past the horizon", "Trainer")


# --- accelerate -----------------------------------------------------------------------------------


def train_with_accelerate(
    root: Path, *, seedable: bool, num_workers: int = 2, resume_at: int | None = None
) -> dict[str, list[Any]]:
    """Train two epochs; save at step 3, or go on from there."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.utils.set_seed(1)
    configuration = accelerate.DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    loader = accelerator.prepare(plain(num_workers, shuffle=True))
    found: dict[str, list[Any]] = {"seen": [], "augmentations": [], "draws": []}
    if resume_at is not None:
        accelerator.load_state(str(root))
    for epoch in range(2):
        loader.set_epoch(epoch)
        skip = resume_at if epoch == 0 else None
        for batch in accelerate.skip_first_batches(loader, skip) if skip else loader:
            found["seen"] += numbers([batch])
            found["augmentations"] += augmentations([batch])
            found["draws"].append(float(torch.rand(())))
            if resume_at is None and len(found["seen"]) == 3:
                accelerator.save_state(str(root))
    return found


@pytest.mark.parametrize("seedable", [False, True])
def test_accelerate_keeps_the_order_of_a_seedable_sampler(seedable: bool, tmp_path: Path) -> None:
    whole = train_with_accelerate(tmp_path, seedable=seedable)
    resumed = train_with_accelerate(tmp_path, seedable=seedable, resume_at=3)
    rest = {name: values[3:] for name, values in whole.items()}
    assert (resumed["seen"] == rest["seen"]) == seedable, cell("order of the shuffle", "accelerate")
    row = "augmentation of a sample"
    assert resumed["augmentations"] != rest["augmentations"], cell(row, "accelerate")
    assert resumed["draws"] != rest["draws"], cell("random state", "accelerate")


def test_accelerate_says_nothing_of_a_broken_random_state(tmp_path: Path) -> None:
    train_with_accelerate(tmp_path, seedable=True)
    file = tmp_path / "random_states_0.pkl"
    file.write_bytes(file.read_bytes()[:1000])
    resumed = train_with_accelerate(tmp_path, seedable=True, resume_at=3)
    row = "truncated newest file"
    assert len(resumed["seen"]) == 2 * NUM_BATCHES - 3, cell(row, "accelerate")


# --- ignite ---------------------------------------------------------------------------------------


def train_with_ignite(
    num_workers: int, state: Any = None, **options: Any
) -> tuple[dict[str, list[Any]], Any]:
    """Train two epochs; return also the state at step 3, or go on from there."""
    ignite = pytest.importorskip("ignite")
    engine_module = pytest.importorskip("ignite.engine")
    average = pytest.importorskip("ignite.metrics").Average()
    ignite.utils.manual_seed(1)
    found: dict[str, list[Any]] = {"seen": [], "augmentations": [], "draws": [], "means": []}
    saved: dict[str, Any] = {}

    def step(engine: Any, batch: list[Tensor]) -> float:
        found["seen"].append(batch[0].tolist())
        found["augmentations"].append(batch[1].tolist())
        found["draws"].append(float(torch.rand(())))
        return float(batch[0].mean())

    engine, events = engine_module.DeterministicEngine(step), engine_module.Events
    average.attach(engine, "mean")

    def keep_mean() -> None:
        found["means"].append(engine.state.metrics["mean"])

    def save() -> None:
        saved.update(engine.state_dict(), mean=average.state_dict())

    engine.add_event_handler(events.EPOCH_COMPLETED, keep_mean)
    engine.add_event_handler(events.ITERATION_COMPLETED(once=3), save)

    if state:
        average.load_state_dict(state["mean"])
        engine.load_state_dict({key: value for key, value in state.items() if key != "mean"})
    engine.run(plain(num_workers, **options), max_epochs=2)
    return found, saved


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ignite_with_workers_keeps_order_and_random_state(num_workers: int) -> None:
    whole, state = train_with_ignite(num_workers, shuffle=True)
    resumed, _ = train_with_ignite(num_workers, state, shuffle=True)
    rest = {name: values[3:] for name, values in whole.items()}
    is_right = num_workers > 0
    assert (resumed["seen"] == rest["seen"]) == is_right, cell("order of the shuffle", "ignite")
    assert (resumed["draws"] == rest["draws"]) == is_right, cell("random state", "ignite")
    row = "augmentation of a sample"
    assert resumed["augmentations"] != rest["augmentations"], cell(row, "ignite")


def test_ignite_forgets_the_means_of_the_epoch() -> None:
    whole, state = train_with_ignite(0)
    assert whole["means"] == [7.5, 7.5]
    resumed, _ = train_with_ignite(0, state)
    # of 6..15, although the state of the metric was loaded
    assert resumed["means"] == [10.5, 7.5], cell("means of the epoch", "ignite")


def test_ignites_deterministic_state_is_not_plain(tmp_path: Path) -> None:
    _, state = train_with_ignite(0)
    torch.save(dict(state), tmp_path / "state.pt")
    error = error_of(torch.load, tmp_path / "state.pt", weights_only=True)
    assert "Weights only load failed" in error, cell("`weights_only=True`", "ignite")


def test_ignite_ends_after_the_step_that_was_bad() -> None:
    engine_module = pytest.importorskip("ignite.engine")
    handlers = pytest.importorskip("ignite.handlers")
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(engine: Any, batch: int) -> float:
        loss = layer(torch.ones(1, 1)).sum() * (float("nan") if batch == 2 else 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    engine = engine_module.Engine(step)
    events = engine_module.Events
    engine.add_event_handler(events.ITERATION_COMPLETED, handlers.TerminateOnNan())
    assert engine.run(range(8), max_epochs=1).iteration == 3, cell("what is checked", "ignite")
    assert layer.weight.isnan().all(), cell("when", "ignite")
