"""The error of a checkpoint that cannot be trusted."""

import os

__all__ = ["BrokenCheckpoint", "printable"]


class BrokenCheckpoint(ValueError):  # noqa: N818 - it says what the file is, not what went wrong here
    """A file or folder that is not a complete checkpoint.

    Attributes:
        path: Which one, as it was given.
        reason: What is wrong with it, in one line that is safe to print.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(path, reason)
        self.path = os.fspath(path)
        self.reason = printable(reason)

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


def printable(text: str) -> str:
    """Return the text with what a terminal would obey, or break a line at, written out.

    Names in a file are its author's, who may have put escape sequences into them.
    """
    return "".join(
        letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text.strip()
    )
