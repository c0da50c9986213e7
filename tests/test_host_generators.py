# ruff: noqa: NPY002 - the global generators are the subject
import ctypes
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_recipes import host_generators
from lightning_recipes.host_generators import HostGenerator, numpy_generator, python_generator
from lightning_recipes.rng import preserve_rng

Actions = dict[str, Callable[[], object]]

PYTHON: Actions = {
    "nothing": lambda: None,
    "a number": random.random,
    "a normal": lambda: random.gauss(0, 1),
    "a block": lambda: random.getrandbits(624 * 32),
    "a seed": lambda: random.seed(3),
}
NUMPY: Actions = {
    "nothing": lambda: None,
    "a number": np.random.random,
    "a normal": np.random.normal,
    "a block": lambda: np.random.bytes(624 * 4),
    "a seed": lambda: np.random.seed(3),
}
both = pytest.mark.parametrize(
    ("generator", "get", "draws"),
    [
        pytest.param(python_generator, random.getstate, PYTHON, id="python"),
        pytest.param(numpy_generator, np.random.get_state, NUMPY, id="numpy"),
    ],
)


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    with preserve_rng():
        yield


@both
@given(actions=st.lists(st.sampled_from([*PYTHON, "keep", "put back"])))
def test_the_state_is_what_the_library_says_after_any_use(
    generator: HostGenerator, get: Callable[[], Any], draws: Actions, actions: list[str]
) -> None:
    kept = generator.state()
    for action in actions:
        if action == "keep":
            kept = generator.state()
        elif action == "put back":
            generator.set_state(kept)
            assert _plain(get()) == _plain(kept)
        else:
            draws[action]()
        assert _plain(generator.state()) == _plain(get()), actions


@both
def test_it_is_the_same_object_until_something_is_drawn(
    generator: HostGenerator, get: Callable[[], Any], draws: Actions
) -> None:
    draws["a seed"]()
    state = generator.state()
    assert generator.state() is state
    draws["a number"]()
    assert generator.state() is not state
    generator.set_state(state)
    assert generator.state() is state
    draws["a block"]()  # all words, and the position is the same again
    generator.set_state(state)  # with no look in between
    assert _plain(get()) == _plain(state)
    draws["a block"]()
    assert generator.state() is not state


def test_a_generator_of_another_kind_is_asked_each_time() -> None:
    mine = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(np.random.PCG64(1))  # type: ignore[attr-defined]
    try:
        first = numpy_generator.state()
        np.random.random()
        assert numpy_generator.state()["state"] != first["state"]
    finally:
        np.random.set_bit_generator(mine)  # type: ignore[attr-defined]


def test_a_python_laid_out_otherwise_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_generators._find_python() is not None
    monkeypatch.setattr(host_generators, "_Words", ctypes.c_char * (626 * 4))
    assert host_generators._find_python() is None  # what is there are no such words
    monkeypatch.undo()
    monkeypatch.setattr(sys.implementation, "name", "another")
    assert host_generators._find_python() is None
    monkeypatch.undo()

    monkeypatch.setattr(host_generators, "_python_view", None)
    state = python_generator.state()
    assert state == random.getstate()
    assert python_generator.state() is not state
    random.random()
    assert python_generator.state() == random.getstate() != state
    python_generator.set_state(state)
    assert random.getstate() == state


def _plain(state: Any) -> Any:
    if isinstance(state, dict):  # numpy's, as numpy_generator has it
        words = state["state"]
        return words["key"].tolist(), words["pos"], state["has_gauss"], state["gauss"]
    if isinstance(state[0], str):  # numpy's, as get_state() gives it
        return state[1].tolist(), *state[2:]
    return state
