import re

from tests.commands import ROOT

README = (ROOT / "README.md").read_text()


def test_code_is_the_example() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    example = (ROOT / "examples/custom_module.py").read_text()
    _, _, after_docstring = example.partition('"""\n\n')
    assert code == after_docstring


def test_files_it_names_exist() -> None:
    names = re.findall(r"`((?:lightning_recipes|configs|examples)/[\w/.]+)`", README)
    missing = [name for name in names if not (ROOT / name).exists()]
    assert names
    assert not missing


def test_has_the_two_commands() -> None:
    commands = re.findall(r"^pip install -c constraints.txt .* && .*$", README, flags=re.MULTILINE)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        "lightning-recipes fit --config configs/names.yaml",
        "pytest",
    ]
