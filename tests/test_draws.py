# ruff: noqa: NPY002 - the global generators are the subject
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from lightning_recipes.draws import DrawWatch
from lightning_recipes.rng import preserve_rng, seed_host_generators


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    with preserve_rng():
        yield


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.getrandbits(1),
        lambda: random.getrandbits(32 * 624),  # all words are drawn, and the position is the same
        lambda: random.seed(0),
        np.random.random,
        np.random.normal,
        lambda: np.random.bytes(4 * 624),
        lambda: np.random.seed(0),
        lambda: torch.rand(()),
        lambda: torch.randn(16),
        lambda: torch.randint(2, (624,)),
        lambda: torch.manual_seed(0),
    ],
)
def test_every_draw_is_seen(draw: Callable[[], object]) -> None:
    for seed in (1, 2):
        seed_host_generators(seed)
        watch = DrawWatch()
        draw()
        assert watch.saw_draws()


def test_a_normal_that_numpy_kept_is_seen() -> None:
    np.random.normal()  # makes two
    watch = DrawWatch()
    np.random.normal()
    assert watch.saw_draws()


def test_nothing_is_seen_where_nothing_was_drawn() -> None:
    for _ in range(2):
        watch = DrawWatch()
        torch.ones(3).sum()
        random.Random(1).random()
        np.random.default_rng(1).random()
        torch.rand((), generator=torch.Generator())
        torch.initial_seed()
        assert not watch.saw_draws()
