"""What the commands ask of their arguments."""

import argparse
from collections.abc import Callable

__all__ = ["at_least"]


def at_least(least: int) -> Callable[[str], int]:
    """Return a ``type`` for argparse: an integer that is not smaller than ``least``."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be >= {least}, got {value}")
        return value

    return number
