from pathlib import Path
from typing import get_args

import pytest
from lightning.fabric.plugins.precision.precision import (
    _PRECISION_INPUT_STR,
    _PRECISION_INPUT_STR_ALIAS,
)

from lightning_recipes.launch import command
from lightning_recipes.launch.devices import num_processes
from tests.launch.launchers import RUN, launch


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "give a script"),
        ("--devices 2", "give a script"),
        ("missing.py", "there is no script 'missing.py'"),
        ("fit --config names.yaml", 'put "--" before a command'),
        ("--devices 0 --accelerator cpu -- fit", "--devices 0"),
        ("--devices two --accelerator cpu -- fit", "--devices two"),
        ("--num-nodes 2 --node-rank 2 -- fit", "--node-rank must be in [0, --num-nodes), got 2"),
        ("--max-restarts -1 -- fit", "must be >= 0, got -1"),
        ("--device 2 -- fit", "unrecognized arguments: --device"),
    ],
)
def test_wrong_arguments_end_with_2(
    arguments: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments.split())
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


def test_precisions_are_lightnings() -> None:
    known = get_args(_PRECISION_INPUT_STR) + get_args(_PRECISION_INPUT_STR_ALIAS)
    assert sorted(command._PRECISIONS) == sorted(known)


def test_counts_processes() -> None:
    assert num_processes("3", accelerator="cpu") == 3
    assert num_processes("auto", accelerator="cpu") == 1


def test_a_script_has_its_arguments_and_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "names = ('LT_DEVICES', 'LT_PRECISION', 'LT_STRATEGY', 'WORLD_SIZE')\n"
        "print(sys.argv[1:], [os.environ.get(name) for name in names])\n"
        "sys.exit(7)\n"
    )
    given = ("--devices", "1", "--precision", "bf16", str(script), "--lr", "1", "--", "--devices")
    code, output = launch(*RUN, *given, cwd=tmp_path)
    assert code == 7, output
    assert "['--lr', '1', '--', '--devices'] ['1', 'bf16', None, '1']" in output
