import time

import pytest

from lightning_recipes.callbacks.wall_time import WallTime


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("00:01:00", 60),
        ("12:34:56", 45_296),
        ("36:00:00", 129_600),
        ("01:00:00:01", 86_401),
        ("2-00:00:00", 172_800),
        (90, 90),
        (0.5, 0.5),
    ],
)
def test_forms(limit: str | float, seconds: float) -> None:
    assert WallTime(limit).limit_s == seconds


@pytest.mark.parametrize(
    "limit", ["", "90", "1:2:3", "00:60:00", "00:00:00", 0, -1.0, float("nan")]
)
def test_other_forms_are_refused(limit: str | float) -> None:
    with pytest.raises(ValueError, match=r"max_wall_time must be.*got"):
        WallTime(limit)


def test_leaves_time_for_a_stretch_and_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    wall_time = WallTime(600)

    def is_up(at_s: float) -> bool:
        nonlocal now
        now = 1000.0 + at_s
        return wall_time.is_up()

    now += 200
    wall_time.restart_stretch()  # what came before was no stretch between batches
    assert not is_up(210)
    assert not is_up(310)  # a stretch of 100 s
    wall_time.note_save(20)
    # 600 - 60 - 100 - 40
    assert [is_up(350), is_up(399), is_up(400)] == [False, False, True]
