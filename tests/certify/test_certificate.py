import json
import math
from typing import Any

import pytest

from lightning_recipes.certify.certificate import Certificate, Point
from lightning_recipes.certify.comparison import Difference

OURS = {"has_resume_checkpoint": True, "has_positions": True, "loaders": ["ResumableDataLoader"]}
PLAIN = {"has_resume_checkpoint": False, "has_positions": False, "loaders": ["DataLoader"]}


def make_difference(step: int, quantity: str = "rows", found: Any = math.nan) -> Difference:
    where = {"step": step, "epoch": 0, "rank": 0}
    return Difference(quantity=quantity, name="loss", expected=1.0, found=found, **where)


def make_point(*differences: Difference, **kwargs: Any) -> Point:
    found = {difference.quantity: difference for difference in differences}
    defaults: dict[str, Any] = {
        "killed_in_step": 5,
        "checkpoint": "resume/step=000000004.ckpt",
        "resumed_after_step": 4,
        "num_batches": 3,
        "num_rows": 2,
        "before_kill": None,
        "differences": {name: found.get(name) for name in Difference.QUANTITIES},
    }
    return Point(**{**defaults, **kwargs})


def make_certificate(*points: Point, run: dict[str, Any] = OURS) -> Certificate:
    return Certificate(versions={"torch": "2"}, options={"at": [5]}, run=run, points=points)


def test_identical() -> None:
    certificate = make_certificate(make_point(), make_point())
    content = json.loads(certificate.to_json())
    assert certificate.is_identical
    assert content["verdict"] == "identical"
    assert content["first_difference"] is None
    assert content["advice"] is None
    assert content["points"][1]["differences"] == dict.fromkeys(Difference.QUANTITIES)


def test_different_names_the_first_in_strict_json() -> None:
    late, early = make_point(make_difference(9)), make_point(make_difference(6))
    text = make_certificate(make_point(), late, early).to_json()
    content = json.loads(text, parse_constant=pytest.fail)
    assert content["verdict"] == "different"
    assert content["first_difference"]["step"] == 6
    assert content["first_difference"]["found"] == "nan"


def test_a_failed_run_is_no_identical_one() -> None:
    certificate = make_certificate(make_point(differences={}, failure="KeyError"))
    assert not certificate.is_identical
    assert json.loads(certificate.to_json())["points"][0]["failure"] == "KeyError"


def test_a_run_that_does_not_repeat_itself_is_not_blamed_on_the_resume() -> None:
    point = make_point(make_difference(6), before_kill=make_difference(2))
    certificate = make_certificate(point, run=PLAIN)
    assert point.first_difference == point.before_kill
    assert "seed_everything" in certificate.advice
    assert "ResumeCheckpoint" not in certificate.advice


def test_advice_names_what_is_missing() -> None:
    point = make_point(make_difference(6))
    assert "ResumeCheckpoint first" in make_certificate(point, run=PLAIN).advice
    assert (
        "(DataLoader) a position: lightning_recipes.resumable(loader)"
        in make_certificate(point, run=PLAIN).advice
    )
    only_loader = {**PLAIN, "has_resume_checkpoint": True}
    assert "ResumeCheckpoint" not in make_certificate(point, run=only_loader).advice
    assert "state_dict()" in make_certificate(point).advice
    assert make_certificate(make_point()).advice == ""
