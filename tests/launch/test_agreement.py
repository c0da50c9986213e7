from typing import Any

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy

from lightning_recipes.launch.agreement import agreed
from lightning_recipes.launch.launched import Asked


def decide(name: str, given: dict[str, Any], value: int | str) -> dict[str, Any]:
    launched = {name: Asked(value=value, source=f"--{name} {value}")}
    return agreed(given, launched, show="Trainer({name}={value!r})", way_out="use {name} {value}")


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("devices", "auto", 2),
        ("devices", -1, 2),
        ("devices", 2, "0,3"),
        ("strategy", "auto", "ddp"),
        ("precision", None, "bf16-mixed"),
        ("accelerator", "auto", "cpu"),
        ("num_nodes", None, 2),
    ],
)
def test_the_launcher_decides_what_is_open(name: str, given: Any, value: int | str) -> None:
    assert decide(name, {name: given}, value) == {name: value}
    if given is None:
        assert decide(name, {}, value) == {name: value}


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("devices", 2, 2),
        ("devices", "2", 2),
        ("devices", [1, 3], 2),
        ("num_nodes", 2, 2),
        ("strategy", "ddp", "ddp"),
        ("precision", 16, "16-mixed"),
        ("precision", "32-true", "32"),
        ("accelerator", "cuda", "gpu"),
    ],
)
def test_what_is_given_stays_if_it_says_the_same(name: str, given: Any, value: int | str) -> None:
    assert decide(name, {name: given}, value) == {}


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("devices", 4, 2),
        ("devices", [0], 2),
        ("devices", [0, 1], "0,2"),
        ("num_nodes", 1, 2),
        ("strategy", "fsdp", "ddp"),
        ("strategy", DDPStrategy(), "fsdp"),
        ("precision", "32-true", "bf16-mixed"),
        ("accelerator", "gpu", "cpu"),
        ("accelerator", "cpu", "gpu"),
    ],
)
def test_a_contradiction_shows_both(name: str, given: Any, value: int | str) -> None:
    with pytest.raises(MisconfigurationException) as caught:
        decide(name, {name: given}, value)
    text = str(caught.value)
    assert text == f"Trainer({name}={given!r}) under --{name} {value}: use {name} {value}."
