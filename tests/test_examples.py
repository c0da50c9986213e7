from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.commands import ROOT, run_command

Run = Callable[[str], tuple[Path, str]]

EXAMPLES = {
    "custom_module.py": ("", "runs/autoencoder/resume/step=000000380.ckpt"),
    "baselines.py": ("digits", "runs/digits/resume/step=000000570.ckpt"),
    "find_a_nan.py": ("", "runs/nan/capsules/step=000000002-rank=0.pt"),
    "multi_gpu.py": ("", "runs/multi_gpu/resume/step=000000057.ckpt"),
    "preemptible.py": ("", "runs/preemptible/end.pt"),
    "ragged_sequences.py": ("", "runs/padding.png"),
    "resume_exactly.py": ("", "runs/resume.png"),
}


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs an example with its arguments, once; returns its folder and what it printed."""

    @cache
    def run(command: str) -> tuple[Path, str]:
        cwd = tmp_path_factory.mktemp("example")
        return cwd, run_command(f"python examples/{command}", cwd)

    return run


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, run: Run) -> None:
    arguments, written = EXAMPLES[name]
    cwd, _ = run(f"{name} {arguments}")
    assert (cwd / written).is_file()


@pytest.mark.parametrize(
    ("name", "margin"), [("digits", 0.01), ("names", 0.0)], ids=["digits", "names"]
)
def test_recipe_is_as_good_as_the_baseline(name: str, margin: float, run: Run) -> None:
    _, output = run(f"baselines.py {name}")
    table = output[output.rindex(f"\n{name} ") :]
    print(table)  # noqa: T201 - shown with pytest -s, and when it fails
    accuracies = {row.split()[0]: float(row.split()[1]) for row in table.strip().splitlines()[1:]}
    assert accuracies["recipe"] >= accuracies["baseline"] - margin
