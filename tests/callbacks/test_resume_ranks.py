"""The matrix on two ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.matrix import CHOICES, FLOAT16, Case, first_difference, run
from tests.ranks import run_trainer_ranks

PLAIN = {name: choices[0] for name, choices in CHOICES.items()}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two loaders and a schedule": {
        "loaders": "two",
        "schedule": "warmup-cosine",
        "optimizer": "adamw",
        "validation": {"val_check_interval": 0.5},
    },
    "accumulation in float16 to max_steps": {
        "accumulate": 4,
        "precision": FLOAT16,
        "optimizer": "momentum",
        "length": {"max_epochs": -1, "max_steps": 5},
    },
    "plateau on steps": {
        "schedule": "plateau on steps",
        "validation": {"val_check_interval": 2},
        "shuffled_validation": True,
        "augmentation": "numpy",
    },
    "two optimizers by hand": {"optimizer": "two, by hand", "augmentation": "python"},
}


def differences_on_a_rank(root: Path) -> list[str]:
    """Resume each case at several steps; return what differs from the run that never stopped."""
    ranks: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    found = []
    for name, choices in CASES.items():
        case, folder = Case(**{**PLAIN, **choices}), root / name.replace(" ", "-")
        whole = run(case, folder / "whole", **ranks)
        files = sorted((folder / "whole" / "resume").glob("*.ckpt"))[:-1]
        assert files, name
        for path in (files[0], files[len(files) // 2], files[-1]):
            resumed = run(case, folder / path.stem, ckpt_path=path, **ranks)
            seen = resumed.pop("seen")
            if seen != whole["seen"][len(whole["seen"]) - len(seen) :]:
                found.append(f"{name}, {path.stem}: batches")
            rows = resumed.pop("rows")
            if rows != whole["rows"][len(whole["rows"]) - len(rows) :]:
                found.append(f"{name}, {path.stem}: rows")
            expected = {key: value for key, value in whole.items() if key in resumed}
            if difference := first_difference(resumed, expected):
                found.append(f"{name}, {path.stem}: {difference}")
    return found


@pytest.mark.timeout(300)
def test_resumed_ranks_are_the_ranks_that_never_stopped(tmp_path: Path) -> None:
    assert run_trainer_ranks(differences_on_a_rank, tmp_path) == [[], []]
