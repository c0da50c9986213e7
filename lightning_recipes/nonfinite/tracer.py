"""Run a training step once more and see where the first number that is not finite comes from.

Only for when it is known that there is one: every look at a tensor waits for its device.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from lightning_recipes.gradients import nonfinite_names
from lightning_recipes.nonfinite.finding import Finding, Values, is_float, listed

__all__ = ["find_in_batch", "find_in_weights", "trace"]


def trace(
    module: nn.Module, run: Callable[[], Tensor | None], *, backward: bool = True
) -> list[Finding]:
    """Run a forward and a backward pass and return what is not finite in them, in that order.

    The first activation, the loss, and, where that is finite, the first gradient on the way back
    and those of the parameters. Neither ``.grad`` nor the reduction of DDP is touched: the backward
    pass goes through ``torch.autograd.grad``. Buffers, generators and what the step sets on the
    module are the caller's to put back.

    An exception is a finding, too: with numbers that are not finite it may well be their
    consequence, and other ranks wait for this one.

    Args:
        module: Its submodules are watched, in the order in which they run.
        run: Computes the loss, as the training step does.
        backward: Whether to go back from a finite loss.
    """
    watch = _Watch(module)
    with watch.hooks():
        try:
            loss = run()
            if loss is not None:
                watch.look_at_loss(loss, backward=backward)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            watch.findings.append(Finding(kind="replay", name="of the training step", detail=text))
    return watch.findings


def find_in_batch(batch: Any) -> list[Finding]:
    """Return the fields of a batch that are not finite, e.g. ``[0]['image']``."""
    return [
        Finding.in_tensor("batch", f"field {path}".rstrip(), leaf)
        for path, leaf in _leaves(batch)
        if is_float(leaf) and not Values.of(leaf).is_finite
    ]


def find_in_weights(module: nn.Module) -> list[Finding]:
    """Return what is not finite in parameters, and NaN in buffers, where -inf can be a mask."""
    findings = []
    for kind, named in (
        ("parameters", dict(module.named_parameters())),
        ("buffers", dict(module.named_buffers())),
    ):
        names = nonfinite_names(named.items())
        if kind == "buffers":
            names = [name for name in names if named[name].isnan().any()]
        if names:
            findings.append(
                Finding(kind=kind, name=listed(names), detail=str(Values.of(named[names[0]])))  # type: ignore[arg-type]
            )
    return findings


class _Watch:
    """Looks at what goes through the modules, and back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.names = {id(part): _title(name, part) for name, part in module.named_modules()}
        self.findings: list[Finding] = []
        self.last_finite = ""
        self.handles = ExitStack()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        with self.handles:
            for part in self.module.modules():
                before = part.register_forward_pre_hook(self._look_at_input, with_kwargs=True)
                self.handles.callback(before.remove)
                self.handles.callback(part.register_forward_hook(self._look_at_output).remove)
            yield

    def look_at_loss(self, loss: Tensor, *, backward: bool) -> None:
        if not Values.of(loss).is_finite:
            before = "" if self.findings else self.last_finite
            self.findings.append(Finding.in_tensor("loss", "", loss, before))
        elif backward and loss.requires_grad:
            self.last_finite = f"loss {float(loss.detach()):.4g}"
            self._go_back(loss)

    def _go_back(self, loss: Tensor) -> None:
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not named:
            return
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        names = nonfinite_names(zip(named, gradients, strict=True))
        if names:
            first = next(g for n, g in zip(named, gradients, strict=True) if n == names[0])
            assert first is not None
            name = f"of {listed(names)}"
            self.findings.append(Finding.in_tensor("gradient", name, first, self.last_finite))

    def _look_at_input(self, part: nn.Module, args: Any, kwargs: Any) -> None:
        self._look(f"input of {self.names[id(part)]}", (args, kwargs))

    def _look_at_output(self, part: nn.Module, args: Any, output: Any) -> None:
        name = f"output of {self.names[id(part)]}"
        self._look(name, output)
        for _, leaf in _leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                # Here, and not before the way back: what comes may change the tensor in place.
                hook = leaf.register_hook(partial(self._look_at_gradient, name))  # type: ignore[no-untyped-call]
                self.handles.callback(hook.remove)

    def _look_at_gradient(self, name: str, gradient: Tensor) -> None:
        values = Values.of(gradient)
        if values.is_finite:
            self.last_finite = f"gradient of {name} in {values.range}"
        elif not any(finding.kind == "gradient" for finding in self.findings):
            found = Finding.in_tensor("gradient", f"of {name}", gradient, self.last_finite)
            self.findings.append(found)

    def _look(self, name: str, content: Any) -> None:
        for _, leaf in _leaves(content):
            if not is_float(leaf) or any(not finding.is_masked for finding in self.findings):
                continue
            values = Values.of(leaf)
            if values.is_finite:
                self.last_finite = f"{name} in {values.range}"
            elif not (values.is_masked and self.findings):
                self.findings.append(Finding.in_tensor("activation", name, leaf, self.last_finite))


def _title(name: str, part: nn.Module) -> str:
    kind = type(part).__name__
    return f"{name} ({kind})" if name else kind


def _leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a nest holds, with the paths to it; dataclasses are looked into, too."""
    for keys, leaf in tree_flatten_with_path(content)[0]:
        name = path + keystr(keys)
        if is_dataclass(leaf) and not isinstance(leaf, type):
            for field in fields(leaf):
                yield from _leaves(getattr(leaf, field.name, None), f"{name}.{field.name}")
        else:
            yield name, leaf
