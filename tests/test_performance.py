"""Costs that can be counted rather than timed."""

from collections import Counter
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_recipes import GradientNormMonitor, NaNDetector, PadCollate, ResumableDataLoader
from lightning_recipes.cli import LossProgressBar
from tests.project import NUM_BATCHES, PointsDataModule, make_module, make_trainer

# What makes a host wait for its device: a value or a data-dependent shape has to be known.
SYNCHRONISING = {"_local_scalar_dense", "nonzero", "unique_dim", "_unique2", "masked_select"}


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def synchronisations(root: Path, num_batches: int) -> int:
    bar = LossProgressBar(refresh_rate=1000)
    trainer = make_trainer(
        root,
        bar,
        NaNDetector(every_n_steps=1000),
        GradientNormMonitor(by_module=1, update_ratio=True),
        gradient_clip_val=1.0,
        max_epochs=1,
        limit_train_batches=num_batches,
        limit_val_batches=0,
        log_every_n_steps=1000,
        enable_progress_bar=True,
    )
    trainer.callbacks[0].every_n_steps = 1000  # type: ignore[attr-defined]
    trainer.callbacks[1].total_steps = 100  # type: ignore[attr-defined]
    data = PointsDataModule(batch_size=4)
    data.setup("fit")
    made: Any = list(data.train_dataloader())
    batches = ResumableDataLoader(made, collate_fn=itemgetter(0))
    module = make_module()
    module.weight_by = "count"
    module.optimizer = partial(torch.optim.SGD, lr=0.1)  # Adam's steps are counted on the host
    with Operators() as operators:
        # batches made before: on the host, where data is prepared, reading a value costs nothing
        trainer.fit(module, batches, batches)
    assert operators.calls["mm"] + operators.calls["addmm"] > num_batches
    return sum(operators.calls[name] for name in SYNCHRONISING)


def test_no_synchronisation_off_the_logging_steps(tmp_path: Path) -> None:
    few = synchronisations(tmp_path / "few", 2)
    many = synchronisations(tmp_path / "many", NUM_BATCHES)
    assert few == many


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", [list, torch.tensor])
def test_padding_takes_no_operator_per_sample(make: Any, side: Any) -> None:
    collate = PadCollate(side=side)
    calls = []
    for num_samples in (2, 64):
        samples = [{"tokens": make([1, *range(i)]), "label": i} for i in range(num_samples)]
        with Operators() as operators:
            collate(samples)
        calls.append(operators.calls)
    assert calls[0] == calls[1]
    assert calls[0]["cat"] == 1
