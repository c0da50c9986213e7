# ruff: noqa: NPY002 - the global generator is the subject
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_recipes.numpy_state import numpy_state, set_numpy_state
from lightning_recipes.rng import preserve_rng

ACTIONS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "a number": np.random.random,
    "a normal": np.random.normal,
    "a block": lambda: np.random.bytes(624 * 4),
    "a seed": lambda: np.random.seed(3),
}


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    with preserve_rng():
        yield


@given(st.lists(st.sampled_from([*ACTIONS, "keep", "put back"])))
def test_it_is_what_numpy_says_after_any_use(actions: list[str]) -> None:
    kept = np.random.get_state(legacy=False)
    for action in actions:
        if action == "keep":
            kept = numpy_state()
        elif action == "put back":
            set_numpy_state(kept)
        else:
            ACTIONS[action]()
        assert _plain(numpy_state()) == _plain(np.random.get_state(legacy=False)), actions


def test_it_is_the_same_object_until_something_is_drawn() -> None:
    np.random.seed(1)
    state = numpy_state()
    assert numpy_state() is state
    np.random.random()
    assert numpy_state() is not state
    set_numpy_state(state)
    assert numpy_state() is state


def test_a_generator_of_another_kind_is_asked_each_time() -> None:
    mine = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(np.random.PCG64(1))  # type: ignore[attr-defined]
    try:
        first = numpy_state()
        np.random.random()
        assert numpy_state()["state"] != first["state"]
    finally:
        np.random.set_bit_generator(mine)  # type: ignore[attr-defined]


def _plain(state: Any) -> Any:
    return {**state, "state": (state["state"]["key"].tolist(), state["state"]["pos"])}
