"""``python -m lightning_recipes`` is ``lightning-recipes``."""

from lightning_recipes.cli import main

if __name__ == "__main__":
    main()
