"""Weights of which each process has a part, used as the plain tensors that they are there.

A parameter on the mesh is a DTensor, so that FSDP, checkpoints and the gradient's norm know which part of what it is.
Inside a layer it is the local part. Every process computes its own rows of the loss, so that the gradient of a weight
that several have alike is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor

ALIKE = Replicate()


def local(x: Tensor) -> Tensor:
    """What of it is here."""
    return x.to_local() if isinstance(x, DTensor) else x


def as_part_of(part: Tensor, whole: Tensor) -> Tensor:
    """What is here of a tensor that is divided like `whole`."""
    if not isinstance(whole, DTensor):
        return part
    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def place(module: nn.Module, name: str, mesh: DeviceMesh, placements: Sequence[Placement]) -> None:
    """Keep this process's part of a parameter that all have whole and alike."""
    whole = getattr(module, name)
    part = distribute_tensor(whole.data, mesh, list(placements), src_data_rank=None)
    setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))


def use_local(module: nn.Module, *, only_first: Sequence[str] = (), is_first: bool = True) -> None:
    """Let a module's forward pass see its own parameters as plain tensors.

    only_first: names of those that count on the first process only, because the others' results are added to its.
    """
    names = [name for name, parameter in module.named_parameters(recurse=False) if isinstance(parameter, DTensor)]
    if names:
        changed: Any = module
        kind: Any = type(module)
        changed.divided, changed.silent = names, () if is_first else tuple(only_first)
        changed.__class__ = _seeing_local(kind)


@cache
def _seeing_local(kind: Any) -> type[nn.Module]:
    # One class for all modules of a kind: a compiled forward pass is then one for all of them.
    class SeeingLocal(kind):
        divided: list[str]
        silent: tuple[str, ...]

        def forward(self, *args: Any, **more: Any) -> Any:
            before = {name: self._parameters[name] for name in self.divided}
            try:
                for name, parameter in before.items():
                    part = parameter.to_local(grad_placements=_of_gradient(parameter))
                    self._parameters[name] = 0 * part if name in self.silent else part
                return super().forward(*args, **more)
            finally:
                self._parameters.update(before)

    SeeingLocal.__name__ = kind.__name__
    return SeeingLocal


def _of_gradient(parameter: DTensor) -> list[Placement]:
    return [Partial() if placement.is_replicate() else placement for placement in parameter.placements]


def finish_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Sum what processes with the same weight have found each, where nothing else did."""
    waiting: dict[dist.ProcessGroup, list[DTensor]] = {}
    for parameter in parameters:
        if isinstance(parameter.grad, DTensor):
            for dim, placement in enumerate(parameter.grad.placements):
                if placement.is_partial():
                    waiting.setdefault(parameter.grad.device_mesh.get_group(dim), []).append(parameter.grad)
    for group, gradients in waiting.items():
        parts = [local(gradient) for gradient in gradients]
        together = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(together, group=group)
        for part, total in zip(parts, together.split([part.numel() for part in parts]), strict=True):
            part.copy_(total.view_as(part))
    for parameter in parameters:
        if isinstance(parameter.grad, DTensor) and any(each.is_partial() for each in parameter.grad.placements):
            parameter.grad = as_part_of(local(parameter.grad), parameter)


def squared_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Of all gradients of this process's layers together, each counted once."""
    kinds: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            kind = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else ()
            kinds.setdefault(kind, []).append(local(gradient))
    totals = [_kind_norm(*kind, parts=parts) for kind, parts in kinds.items()]
    return torch.stack(totals).sum() if totals else torch.zeros(())


def _kind_norm(mesh: DeviceMesh | None = None, placements: Sequence[Placement] = (), *, parts: list[Tensor]) -> Tensor:
    total = torch.stack(torch._foreach_norm(parts)).square().sum()
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            assert mesh is not None
            dist.all_reduce(total, group=mesh.get_group(dim))
    return total
