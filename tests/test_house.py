import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_recipes

PACKAGE = Path(lightning_recipes.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
PURE = [
    "arguments.py",
    "certify/certificate.py",
    "certify/comparison.py",
    "certify/digests.py",
    "certify/points.py",
    "checkpoints.py",
    "ckpt/archive.py",
    "ckpt/broken.py",
    "ckpt/command.py",
    "ckpt/finite.py",
    "ckpt/metadata.py",
    "ckpt/shards.py",
    "ckpt/summary.py",
    "data/bucket_order.py",
    "data/cached_dataset.py",
    "data/collate.py",
    "data/flat_array.py",
    "data/columns.py",
    "data/containers.py",
    "data/length_buckets.py",
    "data/lengths.py",
    "data/order.py",
    "data/padded.py",
    "data/padding.py",
    "data/sample.py",
    "data/seeded_dataset.py",
    "data/seeding.py",
    "data/sequence_dataset.py",
    "data/split.py",
    "draws.py",
    "gradients.py",
    "host_generators.py",
    "launch/launched.py",
    "modules/optimizers.py",
    "networks/gru_net.py",
    "networks/pooling.py",
    "networks/rotary.py",
    "networks/transformer_net.py",
    "rng.py",
    "schedules.py",
    "weights.py",
]
LIGHTNING = {"lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"}


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_reaches_no_lightning(room: str) -> None:
    reached = {name.split(".")[0] for name in _reach(PACKAGE / room, seen=set())}
    assert reached
    assert not reached & LIGHTNING


def test_the_public_names_are_sorted_and_there_and_documented() -> None:
    names = lightning_recipes.__all__
    assert names == sorted(set(names))
    assert not [name for name in names if not getattr(lightning_recipes, name).__doc__]


@pytest.mark.parametrize("module", [m for m in MODULES if Path(m).stem.strip("_") == Path(m).stem])
def test_a_module_lists_its_public_names_in_order(module: str) -> None:
    tree = ast.parse((PACKAGE / module).read_text())
    (names,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert names == sorted(set(names))


def test_the_package_imports_no_data_set_libraries() -> None:
    script = "import json, sys, lightning_recipes; print(json.dumps(list(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120
    )
    imported = set(json.loads(run.stdout))
    assert "lightning_recipes" in imported
    assert not {"babel", "sklearn"} & imported


def _reach(path: Path, seen: set[Path]) -> Iterator[str]:
    """Yield every module that ``path`` and the files of the package behind it import."""
    seen.add(path)
    for name in _imports(path):
        yield name
        behind = PACKAGE.parent.joinpath(*name.split("."))
        for file in (behind.with_suffix(".py"), behind / "__init__.py"):
            if file.is_file() and file not in seen:
                yield from _reach(file, seen)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
