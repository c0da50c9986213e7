"""Every pair of choices, resumed at every kind of moment."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from allpairspy import AllPairs

from tests.callbacks.matrix import CHOICES, Case, first_difference, is_possible, run

pytestmark = pytest.mark.filterwarnings(
    "ignore:lr_scheduler.step\\(\\):UserWarning",
    "ignore:Detected call of `lr_scheduler.step\\(\\)` before `optimizer.step\\(\\)`",
)


def possible(values: list[Any]) -> bool:
    return len(values) < len(CHOICES) or is_possible(Case(*values))


CASES = [Case(*values) for values in AllPairs(list(CHOICES.values()), filter_func=possible)]


def name(case: Case) -> str:
    def words(value: Any) -> str:
        if isinstance(value, dict):
            return ",".join(f"{k.split('_')[0]}={v}" for k, v in value.items())
        return getattr(value, "__name__", str(value)).replace(" ", "_")

    return "-".join(words(getattr(case, field)) for field in CHOICES)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_resumed_run_is_the_run_that_never_stopped(case: Case, tmp_path: Path) -> None:
    whole = run(case, tmp_path / "whole")
    files = sorted((tmp_path / "whole" / "resume").glob("*.ckpt"))
    assert files
    chosen = files[:-1] if case.workers["num_workers"] == 0 else files[1:-1:4]
    for path in chosen:
        root = tmp_path / path.stem
        shutil.rmtree(tmp_path / "kept")
        resumed = run(case, root, ckpt_path=path)
        seen, rows = resumed.pop("seen"), resumed.pop("rows")
        assert seen == whole["seen"][len(whole["seen"]) - len(seen) :]
        expected = {key: value for key, value in whole.items() if key in resumed}
        assert first_difference(resumed, expected) is None, path.stem
        saved_at = int(path.stem.removeprefix("step="))
        assert rows == whole["rows"][len(whole["rows"]) - len(rows) :], saved_at
