import io
from typing import Any

import pytest
from rich.console import Console

from lightning_recipes.certify.certificate import Point
from lightning_recipes.certify.comparison import Difference
from lightning_recipes.certify.report import Report
from tests.certify.test_certificate import make_certificate, make_difference, make_point


def shown(*points: Point) -> str:
    file = io.StringIO()
    Report(Console(file=file, width=80)).certificate(make_certificate(*points))
    return file.getvalue()


def test_every_quantity_has_a_column_that_fits_a_terminal() -> None:
    differences = [make_difference(123456, quantity) for quantity in Difference.QUANTITIES]
    text = shown(make_point(*differences, killed_in_step=123456, resumed_after_step=123455))
    assert "…" not in text
    for quantity in Difference.QUANTITIES:
        assert all(word in text for word in quantity.split())
    assert text.count("123456") == 1 + len(Difference.QUANTITIES) + 2


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({}, "Identical: every resumed run is the run that never stopped, in 3 batches and 2 rows"),
        ({"checkpoint": None}, "No checkpoint had been written before any kill"),
        ({"before_kill": make_difference(2)}, "even before the kill: step 2"),
        ({"failure": "KeyError: [x]", "differences": {}}, "KeyError: [x]"),
        ({"failure": "KeyError: [x]", "differences": {}}, "cannot be resumed"),
    ],
)
def test_says_what_happened(point: dict[str, Any], words: str) -> None:
    assert words in " ".join(shown(make_point(**point)).split())


def test_names_the_first_difference_and_both_values() -> None:
    text = " ".join(shown(make_point(make_difference(7, "weights", found=[2]))).split())
    assert "step 7 (epoch 0, rank 0): weights, loss: expected 1.0, found [2]." in text


def test_progress_shows_the_run_and_its_steps() -> None:
    file = io.StringIO()
    report = Report(Console(file=file, width=80))
    with report.progress("killed in step 3", None) as on_progress:
        on_progress(2, 9)
    assert "killed in step 3" in file.getvalue()
    assert "2/9 steps" in file.getvalue()
