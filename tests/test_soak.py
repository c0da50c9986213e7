"""A run that saves at every step survives every kill: see ``tests/soak.py``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT


def soak(root: Path, kills: int, ranks: int) -> dict[str, int]:
    options = ["--kills", str(kills), "--ranks", str(ranks)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", str(root), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize(
    ("kills", "ranks"),
    [
        (8, 1),
        (3, 2),
        pytest.param(50, 1, marks=pytest.mark.slow),
        pytest.param(50, 2, marks=pytest.mark.slow),
    ],
)
def test_no_kill_costs_more_than_the_step_in_hand(kills: int, ranks: int, tmp_path: Path) -> None:
    report = soak(tmp_path / "soak", kills, ranks)
    assert report["kills"] >= kills
    assert report["most_steps_lost"] <= 0
    assert report["is_equal"]
