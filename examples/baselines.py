"""A recipe beside scikit-learn's baseline on the same split: ``python examples/baselines.py NAME``.

The baselines are the usual ones of the two data sets: a support vector machine for the digits, and
character 1-4-grams with a logistic regression for the names.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from torch.utils.data import Subset

from lightning_recipes import DigitsDataModule, NamesDataModule
from lightning_recipes.cli import RecipesCLI
from lightning_recipes.datasets.digits import load_digits
from lightning_recipes.datasets.names import load_names

CONFIGS = Path(__file__).parents[1] / "configs"


def digits_baseline() -> float:
    """Return the validation accuracy of ``SVC(gamma=0.001)`` on the pixels 0..16."""
    data = DigitsDataModule()
    data.setup("fit")
    images, digits = load_digits()
    pixels = images.flatten(1).numpy() * 16
    train, val = (
        part.indices for part in (data.train_set, data.val_set) if isinstance(part, Subset)
    )
    model = SVC(gamma=0.001).fit(pixels[train], digits.numpy()[train])
    return float(model.score(pixels[val], digits.numpy()[val]))


def names_baseline() -> float:
    """Return the validation accuracy of character n-grams with a logistic regression."""
    data = NamesDataModule()
    data.setup("fit")
    names, languages = load_names()
    train, val = (
        part.indices for part in (data.train_set, data.val_set) if isinstance(part, Subset)
    )
    model = make_pipeline(
        TfidfVectorizer(analyzer="char", ngram_range=(1, 4)),
        LogisticRegression(C=10, max_iter=1000),
    )
    model.fit([names[i] for i in train], [languages[i] for i in train])
    return float(model.score([names[i] for i in val], [languages[i] for i in val]))


def recipe(config: str) -> float:
    """Train ``configs/CONFIG.yaml`` and return the validation accuracy of its best checkpoint."""
    cli = RecipesCLI(["fit", "--config", str(CONFIGS / f"{config}.yaml")])
    (scores,) = cli.trainer.validate(cli.model, cli.datamodule, ckpt_path="best", verbose=False)
    return scores["val/accuracy"]


BASELINES: dict[str, Callable[[], float]] = {"digits": digits_baseline, "names": names_baseline}


def compare(name: str) -> tuple[float, float]:
    """Print both accuracies and what they cost, and return them: (recipe, baseline)."""
    rows = []
    functions: dict[str, Callable[[], float]] = {
        "recipe": partial(recipe, name),
        "baseline": BASELINES[name],
    }
    for title, function in functions.items():
        start = time.perf_counter()
        rows.append((title, function(), time.perf_counter() - start))
    print(f"\n{name:10s} {'val accuracy':>12s} {'seconds':>8s}")
    for title, accuracy, seconds in rows:
        print(f"{title:10s} {accuracy:12.4f} {seconds:8.1f}")
    return rows[0][1], rows[1][1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(BASELINES), help="which data set and recipe")
    name = parser.parse_args().name
    del sys.argv[1:]  # they are this script's, not the command line's that it calls
    compare(name)
