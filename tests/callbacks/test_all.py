"""What every exported callback must hold."""

import inspect
import io
import pickle

import pytest
import torch
from lightning.pytorch import Callback

import lightning_recipes

CALLBACKS = [
    exported
    for exported in map(lightning_recipes.__dict__.get, lightning_recipes.__all__)
    if isinstance(exported, type) and issubclass(exported, Callback)
]
each = pytest.mark.parametrize("callback", CALLBACKS, ids=lambda callback: callback.__name__)


@each
def test_works_without_arguments_and_pickles(callback: type[Callback]) -> None:
    restored = pickle.loads(pickle.dumps(callback()))
    assert restored.state_dict() == callback().state_dict()


@each
def test_state_is_plain_and_comes_back(callback: type[Callback]) -> None:
    state = callback().state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    other = callback()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert other.state_dict() == state


@each
def test_two_instances_share_nothing(callback: type[Callback]) -> None:
    one, two = callback(), callback()
    for name, value in vars(one).items():
        if not isinstance(value, int | float | str | tuple | None):  # nothing that changes
            assert value is not getattr(two, name)


@each
def test_options_are_named(callback: type[Callback]) -> None:
    parameters = list(inspect.signature(callback).parameters.values())
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters[1:])


@each
def test_hooks_have_lightnings_signatures(callback: type[Callback]) -> None:
    for name, method in vars(callback).items():
        if name in vars(Callback) and inspect.isfunction(method) and not name.startswith("_"):
            expected = inspect.signature(getattr(Callback, name)).parameters
            assert list(inspect.signature(method).parameters) == list(expected), name
