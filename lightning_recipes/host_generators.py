"""The states of python's and numpy's global generators, at no cost where nothing was drawn."""

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["HostGenerator", "numpy_generator", "python_generator"]

# Both are Mersenne Twisters, which a draw moves in 624 words and a position.
_Words = ctypes.c_char * (625 * 4)


class HostGenerator:
    """A global generator whose state is copied only after it was drawn from.

    Both libraries copy the words one by one, python in 7 microseconds and numpy in 25; here they
    are compared in memory, in half of one. A state that keeps the second of a pair of normals is
    copied each time, because taking that one moves no word.

    Args:
        get: Returns the state.
        put: Sets it.
        words: Returns what moves; None where it cannot be seen, and the state is copied each time.
        keeps_normal: Whether a state keeps half of a pair.
    """

    def __init__(
        self,
        *,
        get: Callable[[], Any],
        put: Callable[[Any], None],
        words: Callable[[], bytes | None],
        keeps_normal: Callable[[Any], bool],
    ) -> None:
        self._get = get
        self._put = put
        self._words = words
        self._keeps_normal = keeps_normal
        self._known: tuple[bytes | None, Any] = (None, None)

    def state(self) -> Any:
        """Return the state: the same object as long as nothing was drawn."""
        words = self._words()
        if words is not None and words == self._known[0]:
            return self._known[1]
        state = self._get()
        self._know(words, state)
        return state

    def set_state(self, state: Any) -> None:
        """Go to a state that :meth:`state` returned, or the library."""
        words, known = self._known
        if known is not state or words is None or words != self._words():
            self._put(state)
            self._know(self._words(), state)

    def _know(self, words: bytes | None, state: Any) -> None:
        self._known = (None, None) if self._keeps_normal(state) else (words, state)


def _numpy_words() -> bytes | None:
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in numpy 2.4
    if not isinstance(generator, np.random.MT19937):
        return None
    return _Words.from_address(generator.ctypes.state_address).raw


def _python_words() -> bytes | None:
    return None if _python_view is None else _python_view.raw


def _find_python() -> ctypes.Array[ctypes.c_char] | None:
    """Return what CPython (3.10 to 3.13) keeps behind the object's header: position and words."""
    generator = getattr(random.random, "__self__", None)  # that of the module's functions
    header, size = object.__basicsize__, ctypes.sizeof(_Words)
    if sys.implementation.name != "cpython" or not isinstance(generator, random.Random):
        return None
    if type(generator).__basicsize__ < header + size:
        return None
    *words, position = generator.getstate()[1]
    view = _Words.from_address(id(generator) + header)
    return view if view.raw == struct.pack("=625I", position, *words) else None


_python_view = _find_python()

python_generator = HostGenerator(
    get=random.getstate,
    put=random.setstate,
    words=_python_words,
    keeps_normal=lambda state: state[2] is not None,
)
numpy_generator = HostGenerator(
    get=lambda: np.random.get_state(legacy=False),  # noqa: NPY002 - the one users draw from
    put=np.random.set_state,
    words=_numpy_words,
    keeps_normal=lambda state: bool(state["has_gauss"]),
)
