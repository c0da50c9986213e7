import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lightning_recipes.callbacks.window import Window
from lightning_recipes.rng import preserve_rng


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("draw", "is_taken"),
    [
        (nothing, False),
        (lambda: torch.rand(()), False),
        (random.random, True),
        (np.random.rand, True),
        (lambda: np.random.randn(), True),  # noqa: NPY002 - takes a number now, keeps one for later
    ],
    ids=["nothing", "torch", "python", "numpy", "numpy's normal"],
)
def test_states_are_taken_of_generators_that_are_drawn_from(
    draw: Callable[[], object], is_taken: bool
) -> None:
    window = Window()
    with preserve_rng():
        for batch_idx in range(12):
            window.clear()
            window.add([torch.ones(2)], batch_idx)
            draw()
            window.close()
    (last,) = window.micro_batches
    assert (last.rng.python is not None) == is_taken
    assert (last.rng.numpy is not None) == is_taken


def test_a_batch_is_kept_as_it_was_given() -> None:
    window, batch = Window(), {"x": torch.ones(2), "rest": [1, "two"]}
    window.add(batch, 0)
    del batch["x"]
    kept = window.micro_batches[0].batch
    assert list(kept) == ["x", "rest"]
    assert torch.equal(kept["x"], torch.ones(2))
