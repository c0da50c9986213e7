"""How much faster two ranks are than one: ``python -m tests.benchmarks.scaling``.

The whole bundle, plain Lightning with clipping, and a bare loop of torch, on one and two ranks of
one machine, each with one thread and the same batch, which talk through gloo (weak scaling). The
network is the Transformer block of ``workload.py``, where computing takes most of the time. The
figure of a run is that of the median step on rank 0; on one rank there is no DDP.

Efficiency is samples/s on two ranks over twice those on one. What a second core adds, and what two
of them share, is the machine's: compare the ways, not machines.
"""

import dataclasses
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch.distributed as dist
from lightning.pytorch import seed_everything
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightning_recipes import ResumableDataLoader
from tests.benchmarks.report import Row, Table, compare, main
from tests.benchmarks.trainings import Plain, Recipe, bundle, fit, fit_torch
from tests.benchmarks.workload import Objective, Samples, transformer
from tests.ranks import run_trainer_ranks


def with_ours(objective: Objective, data: Samples, world_size: int) -> None:
    """Train with everything attached."""
    fit(Recipe(objective), bundle(), data, load=ResumableDataLoader, **on(world_size))


def with_lightning(objective: Objective, data: Samples, world_size: int) -> None:
    """Train with clipping alone."""
    fit(Plain(objective), [], data, **on(world_size))


def with_torch(objective: Objective, data: Samples, world_size: int) -> None:
    """Train without anybody's help; every rank takes its own part of the data."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    module: nn.Module = objective if world_size == 1 else DistributedDataParallel(objective)
    part = Samples(data.shape, data.num_steps // world_size)
    part.times = data.times
    fit_torch(module, part)


def on(world_size: int) -> dict[str, Any]:
    """Return the Trainer's options."""
    return {"devices": world_size, "strategy": "auto" if world_size == 1 else "ddp"}


WAYS: dict[str, Callable[[Objective, Samples, int], None]] = {
    "ours: all callbacks": with_ours,
    "Lightning, clipping": with_lightning,
    "a bare loop of torch": with_torch,
}


def measure(num_steps: int) -> dict[str, float]:
    """Return the samples/s of each way, on a rank."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    world_size = int(os.environ["WORLD_SIZE"])
    figures = {}
    for name, train in WAYS.items():
        seed_everything(1, verbose=False)
        network, shape = transformer()
        data = Samples(shape, num_steps * world_size)
        train(Objective(network), data, world_size)
        figures[name] = world_size * shape[0] * 1e6 / data.step_us()
    return figures


class Ranks:
    """So many ranks, which are started once for every round and take the figures of all ways.

    Args:
        world_size: How many.
        num_steps: Of a run.
    """

    def __init__(self, world_size: int, num_steps: int) -> None:
        self.world_size = world_size
        self.title = f"{world_size} rank{'s' * (world_size > 1)}"
        self.num_steps = num_steps
        self._figures: dict[str, float] = {}

    def figure(self, name: str) -> float:
        """Return the next figure of a way."""
        if name not in self._figures:
            self._figures = run_trainer_ranks(measure, self.num_steps, world_size=self.world_size)[
                0
            ]
        return self._figures.pop(name)


def with_efficiency(table: Table) -> Table:
    """Return the table with a note in the rows of two ranks, each of which follows its one."""
    rows: list[Row] = []
    for row in table.rows:
        if len(rows) % 2 and row.value and rows[-1].value:
            row = dataclasses.replace(
                row, note=f"efficiency {row.value / (2 * rows[-1].value):.0%}"
            )
        rows.append(row)
    return dataclasses.replace(table, rows=rows)


def tables(quick: bool) -> Iterator[Table]:
    """Yield the one table."""
    ranks = [Ranks(world_size, 15 if quick else 60) for world_size in (1, 2)]
    ways = {
        f"{name}, {group.title}": partial(group.figure, name) for name in WAYS for group in ranks
    }
    table = compare(
        "1 and 2 ranks, more is better",
        "samples/s",
        ways,
        num_rounds=1 if quick else 5,
        warm_up=False,
    )
    yield with_efficiency(table)


if __name__ == "__main__":
    main(tables, __doc__)
