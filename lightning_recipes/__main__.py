"""``lightning-recipes``, and ``python -m lightning_recipes``: one door to all commands."""

import os
import sys
from collections.abc import Sequence

from lightning_recipes.certify.command import main as certify
from lightning_recipes.ckpt.command import main as ckpt
from lightning_recipes.cli import RecipesCLI
from lightning_recipes.launch.command import main as run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Instead of those of the process, for use from Python.

    Raises:
        SystemExit: At the end of ``certify``, ``ckpt`` and ``run``, with their exit status; or the
            arguments are wrong.
    """
    # As "python -m" does, so that a configuration can name modules beside it.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    given = sys.argv[1:] if arguments is None else list(arguments)
    for name, command in (("certify", certify), ("ckpt", ckpt), ("run", run)):
        if given[:1] == [name]:
            sys.exit(command(given[1:]))
    RecipesCLI(None if arguments is None else given)


if __name__ == "__main__":
    main()
