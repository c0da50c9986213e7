"""Norms of gradients, clipping with a norm that is known already, and which tensors are not finite.

Everything here works on any mix of dtypes and devices, on sparse gradients, on parameters without a
gradient, and on ``DTensor`` shards, whose norm is that of the whole tensor (a collective on its
mesh). Nothing waits for the device, but for :func:`nonfinite_names`, which says so, and the
coalescing of sparse gradients on a GPU.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate

__all__ = ["clip_with_norm", "module_norms", "nonfinite_names", "scale_gradients", "total_norm"]

_NARROW = (torch.float16, torch.bfloat16)
_kind = attrgetter("layout", "dtype")


def total_norm(tensors: Iterable[Tensor | None], norm_type: float = 2.0) -> Tensor:
    """Return the norm of all tensors together, as one vector; a scalar on the first one's device.

    ``torch.nn.utils.get_total_norm``, which is one pass of foreach kernels, and what it lacks: the
    norm of float16 and bfloat16 tensors is computed in float32 (in float16 the norm of 10 numbers
    of 30,000 is already infinite), sparse gradients count repeated rows once, with their sum,
    ``None`` is left out, and shards on several meshes go together. Not finite if anything in it is
    not finite; the converse holds too for ``norm_type=inf``, while squares can overflow. (The
    largest value of shards is infinite where one of them has a NaN.)

    Args:
        tensors: E.g. ``[p.grad for p in module.parameters()]``; without any the norm is 0.
        norm_type: The order p > 0; ``inf`` for the largest absolute value.

    Raises:
        ValueError: The order is not greater than 0.

    Example:
        >>> total_norm([torch.tensor([3.0]), None, torch.tensor([[4.0]])])
        tensor(5.)
    """
    norm_type = _checked_order(norm_type)
    present = [tensor for tensor in tensors if tensor is not None]
    if not present:
        return torch.zeros(())
    if _is_ordinary(present) and norm_type != math.inf:
        return torch.nn.utils.get_total_norm(present, norm_type)
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for tensor in present:
        dense = tensor.coalesce().values() if tensor.is_sparse else tensor
        if dense.numel():
            mesh = dense.device_mesh if isinstance(dense, DTensor) else None
            groups[mesh, dense.dtype, dense.device].append(dense)
    norms = [_norm_of_group(group, norm_type) for group in groups.values()]
    device = present[0].device
    if not norms:
        return torch.zeros((), device=device)
    parts = torch.stack([norm.to(device) for norm in norms])
    return torch.linalg.vector_norm(parts, norm_type)  # type: ignore[no-any-return]


def module_norms(
    named_tensors: Iterable[tuple[str, Tensor | None]], *, depth: int, norm_type: float = 2.0
) -> dict[str, Tensor]:
    """Return the norm of each module's tensors, by module name cut at a depth.

    Args:
        named_tensors: Names as in ``module.named_parameters()``, e.g. with the gradients.
        depth: How many parts of a module's name to keep: with 1 ``encoder.0.weight`` belongs to
            ``encoder``, with 2 or more to ``encoder.0``. A parameter of the root has its own name,
            and what ``encoder`` has beside ``encoder.0`` is ``encoder.own``.
        norm_type: As in :func:`total_norm`.

    Raises:
        ValueError: ``depth`` is less than 1, or the order is not greater than 0.

    Example:
        >>> named = [("a.0.w", torch.tensor([3.0])), ("a.1.w", torch.tensor([4.0]))]
        >>> module_norms(named, depth=1)
        {'a': tensor(5.)}
    """
    if depth < 1:
        raise ValueError(f"depth is a number of parts of a module's name >= 1, got {depth}.")
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for name, tensor in named_tensors:
        if tensor is not None:
            groups[".".join(name.split(".")[:-1][:depth]) or name].append(tensor)
    parents = {name[:i] for name in groups for i, letter in enumerate(name) if letter == "."}
    return {
        f"{name}.own" if name in parents else name: total_norm(group, norm_type)
        for name, group in groups.items()
    }


def clip_with_norm(parameters: Iterable[Tensor], *, max_norm: float, norm: Tensor) -> None:
    """Scale the gradients by ``min(1, max_norm / (norm + 1e-6))``, in place.

    ``torch.nn.utils.clip_grads_with_norm_``, for sparse gradients and several meshes too. With a
    norm that is not finite they end up zero or NaN, as in torch.

    Args:
        parameters: Those without a gradient are left alone.
        max_norm: The largest norm to leave as it is.
        norm: Their norm; the same scalar on all ranks. A multiple of it clips gradients that are
            multiplied likewise, e.g. by a loss scale.
    """
    parameters = list(parameters)
    groups: dict[object, list[Tensor]] = {None: parameters}
    if DTensor in set(map(type, parameters)):
        groups = defaultdict(list)
        for parameter in parameters:
            groups[getattr(parameter, "device_mesh", None)].append(parameter)
    for group in groups.values():
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm)


def scale_gradients(parameters: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply the gradients by a scalar, in place.

    Args:
        parameters: Those without a gradient are left alone.
        factor: The same scalar on all ranks.
    """
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            mesh = gradient.device_mesh if isinstance(gradient, DTensor) else None
            groups[mesh, gradient.device].append(gradient)
    for group in groups.values():
        torch._foreach_mul_(group, factor.to(group[0].device))


def nonfinite_names(named_tensors: Iterable[tuple[str, Tensor | None]]) -> list[str]:
    """Return the names of the tensors that hold a NaN or an infinity, in their order.

    Waits for the device, once: for when it is known that something is wrong.

    Example:
        >>> nonfinite_names([("a", torch.ones(2)), ("b", torch.tensor([1.0, float("nan")]))])
        ['b']
    """
    largest = {
        name: total_norm([tensor], math.inf)
        for name, tensor in named_tensors
        if tensor is not None and (tensor.is_floating_point() or tensor.is_complex())
    }
    if not largest:
        return []
    device = next(iter(largest.values())).device
    values = torch.stack([value.to(device) for value in largest.values()]).tolist()
    return [name for name, value in zip(largest, values, strict=True) if not math.isfinite(value)]


def _is_ordinary(tensors: list[Tensor]) -> bool:
    """Whether torch does the right thing; one pass in C, since there can be hundreds of them."""
    types, kinds = set(map(type, tensors)), set(map(_kind, tensors))
    return types == {Tensor} and kinds == {(torch.strided, torch.float32)}


def _norm_of_group(tensors: list[Tensor], norm_type: float) -> Tensor:
    if isinstance(tensors[0], DTensor) and math.isinf(norm_type):
        return _largest_of_shards([tensor for tensor in tensors if isinstance(tensor, DTensor)])
    if tensors[0].dtype in _NARROW:
        # Not get_total_norm, which would keep float16; and not a copy of all gradients as float32.
        float32 = torch.float32
        norms = [torch.linalg.vector_norm(t, norm_type, dtype=float32) for t in tensors]
        norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    else:
        norm = torch.nn.utils.get_total_norm(tensors, norm_type)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _largest_of_shards(tensors: list[DTensor]) -> Tensor:
    """Return the largest absolute value; infinite for a NaN.

    Not get_total_norm (torch 2.13): it fails on the rank whose shard is empty, while the others
    wait, and the ranks' maximum loses a NaN that not the first of them has.
    """
    mesh, device = tensors[0].device_mesh, tensors[0].device
    dtype = torch.promote_types(tensors[0].dtype.to_real(), torch.float32)
    summed = [
        tensor.redistribute(
            placements=[Replicate() if p.is_partial() else p for p in tensor.placements]
        )
        for tensor in tensors
    ]
    largest = total_norm([tensor.to_local() for tensor in summed], math.inf).to(device, dtype)
    largest = torch.where(torch.isnan(largest), math.inf, largest)
    return DTensor.from_local(largest, mesh, [Partial("max")] * mesh.ndim).full_tensor()


def _checked_order(norm_type: float) -> float:
    order = float(norm_type)
    if not order > 0:
        raise ValueError(f"norm_type is the order of a norm, > 0 or inf, got {norm_type}.")
    return order
