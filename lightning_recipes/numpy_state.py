"""The state of numpy's global generator, in a microsecond where nothing was drawn since."""

import ctypes
from typing import Any

import numpy as np

__all__ = ["numpy_state", "set_numpy_state"]

State = dict[str, Any]

# of numpy's struct: 624 words and a position, all that a draw can move
_NUM_BYTES = 625 * 4

_remembered: tuple[bytes, State] | None = None


def numpy_state() -> State:
    """Return ``np.random.get_state(legacy=False)``: the same object as long as nothing was drawn.

    numpy copies its 624 words one by one, in 25 microseconds; here they are compared in place. A
    state that keeps the second of a pair of normals is looked at each time, because taking that one
    moves no word.
    """
    words = _words()
    if _remembered is not None and words == _remembered[0]:
        return _remembered[1]
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - the one users draw from
    assert isinstance(state, dict)
    _remember(words, state)
    return state


def set_numpy_state(state: State) -> None:
    """Set the state, with a draw or without one since :func:`numpy_state`."""
    is_there = _remembered is not None and _remembered[1] is state and _remembered[0] == _words()
    if not is_there:
        np.random.set_state(state)  # noqa: NPY002
        _remember(_words(), state)


def _remember(words: bytes | None, state: State) -> None:
    global _remembered
    _remembered = None if words is None or state["has_gauss"] else (words, state)


def _words() -> bytes | None:
    """Return the words and the position, or None for a generator of another kind."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in numpy 2.4
    if not isinstance(generator, np.random.MT19937):
        return None
    return ctypes.string_at(generator.ctypes.state_address, _NUM_BYTES)
