"""What a training step costs with everything attached: ``python -m tests.benchmarks.step``.

The whole bundle (``RecipeModule`` with clipping, all callbacks, ``ResumableDataLoader``) against
plain Lightning with clipping, Lightning with the usual callbacks written by hand, transformers'
``Trainer``, and a bare loop of torch, on three networks and one thread. The last table takes the
bundle apart; what is not "all" there has torch's DataLoader.

All train the same module with the same AdamW on the same samples, shuffled, from memory, loaded in
the main process. The figure of a run is the median time from one batch's fetching to the next, the
first tenth left out: what comes every 50 steps (a line of the log) is in the run, but not in its
median.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from torch.utils.data import DataLoader

from lightning_recipes import NaNDetector, ResumableDataLoader, ResumeCheckpoint, WarmupCosineLR
from tests.benchmarks.report import Table, compare, main
from tests.benchmarks.trainings import (
    FiniteCheck,
    GradNorm,
    Loader,
    Plain,
    PlainWithSchedule,
    Recipe,
    bundle,
    by_hand,
    fit,
    fit_torch,
    fit_transformers,
    watchers,
)
from tests.benchmarks.workload import (
    Network,
    Objective,
    Samples,
    conv_net,
    small_tensors,
    transformer,
)

Train = Callable[[Objective, Samples], None]
Make = Callable[[Objective], LightningModule]


def lightning(make: Make, callbacks: Callable[[], list[Callback]], load: Loader) -> Train:
    """Return the training of a module with callbacks and a loader."""
    return lambda objective, data: fit(make(objective), callbacks(), data, load=load)


def microseconds(train: Train, network: Network, num_steps: int) -> float:
    """Return the median time of a step of one run."""
    gc.collect()  # the last run's, in which all modules and their callbacks are
    seed_everything(1, verbose=False)
    made, shape = network()
    data = Samples(shape, num_steps)
    train(Objective(made), data)
    return data.step_us()


recipe = partial(lightning, Recipe, load=DataLoader)
plain = partial(lightning, Plain, load=DataLoader)
BUNDLE = lightning(Recipe, bundle, ResumableDataLoader)
WAYS: dict[str, Train | None] = {
    "ours: RecipeModule, clipping, all callbacks": BUNDLE,
    "Lightning, clipping": plain(list),
    "Lightning, clipping, callbacks by hand": lightning(PlainWithSchedule, by_hand, DataLoader),
    "transformers' Trainer": fit_transformers if find_spec("transformers") else None,
    "Composer (needs torch < 2.7.1)": None,
    "a bare loop of torch, clipping": fit_torch,
}
PARTS: dict[str, Train | None] = {
    "ours: all": BUNDLE,
    "  all, with torch's DataLoader": recipe(bundle),
    "  RecipeModule, clipping": recipe(list),
    "    and NaNDetector": recipe(lambda: [NaNDetector()]),
    "    and both monitors": recipe(watchers),
    "    the same with every_n_steps=50": recipe(lambda: watchers(50)),
    "    and ResumeCheckpoint alone": recipe(lambda: [ResumeCheckpoint()]),
    "    and WarmupCosineLR alone": recipe(lambda: [WarmupCosineLR()]),
    "Lightning, clipping": plain(list),
    "    and a finite check by hand": plain(lambda: [FiniteCheck()]),
    "    and grad_norm, logged": plain(lambda: [GradNorm()]),
}


def tables(quick: bool) -> Iterator[Table]:
    """Yield a table for each network, and that of the parts; if quick, of the first two."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    questions: list[tuple[str, Network, int, dict[str, Train | None]]] = [
        ("98 small tensors", small_tensors, 100, WAYS),
        ("a Transformer block, 16 x 64 x 128", transformer, 40, WAYS),
        ("convolutions, 64 images of 8x8", conv_net, 80, WAYS),
        ("98 small tensors, the parts", small_tensors, 100, PARTS),
    ]
    for title, network, num_steps, trains in questions[: 2 if quick else None]:
        ways = {
            name: train and partial(microseconds, train, network, num_steps // (4 if quick else 1))
            for name, train in trains.items()
        }
        yield compare(
            f"a step: {title}",
            "us a step",
            ways,
            num_rounds=2 if quick else 7,
            warm_up=not quick,
        )


if __name__ == "__main__":
    main(tables, __doc__)
