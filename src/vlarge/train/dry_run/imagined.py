"""A process among any number of others, of which there is only this one, and tensors that have sizes but no numbers.

Whole numbers are real: they say where rows lie and go, and code reads them. All else is torch's fake tensors, on which
a model of any size runs in no memory and little time. What others would answer is what a process like this one would.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # collectives of tensors without numbers
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlarge.contracts import InputError
from vlarge.models.language import GatedMLP
from vlarge.models.moe import Experts
from vlarge.train.parallel.world import World

BACKEND = "fake"
WHOLE_NUMBERS = (torch.int64, torch.int32, torch.bool)


@contextmanager
def imagined_world(rank: int, size: int) -> Iterator[World]:
    """The world as process `rank` of `size` would see it; nobody else is there, and nothing is sent.

    Raises InputError inside a run of several processes.
    """
    if dist.is_initialized():
        raise InputError("a dry run is one process: start it without torchrun")
    dist.init_process_group(BACKEND, store=FakeStore(), rank=rank, world_size=size)
    try:
        yield World(rank, size, cpu_backend=BACKEND)
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # it would hand out groups of this world in the next one


class Imagined(TorchDispatchMode):
    """Inside the block, what has numbers with fractions is never computed."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # first it takes itself apart
        call = partial(func, *args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if given and all(map(_is_real, given)):
            return self._answered(func, args, call())
        with self._fake:
            found = call()
        made = isinstance(found, Tensor) and not given
        return call() if made and found.dtype in WHOLE_NUMBERS else found

    def bring(self, module: nn.Module) -> None:
        """Let a module on torch's meta device be as if it were on the CPU."""
        with self._fake:
            module.to_empty(device="cpu")

    def _answered(self, func: Any, args: Sequence[Any], found: Any) -> Any:
        # Counts of rows that processes tell each other: all of them send as many here as this one sends to itself.
        if func is torch.ops.c10d.alltoall_base_.default:
            coming, going, group = args[0], args[1], dist.ProcessGroup.unbox(args[2])
            coming.view(group.size(), -1).copy_(going.view(group.size(), -1)[group.rank()])
        return found


def _is_real(x: Tensor) -> bool:
    return x.dtype in WHOLE_NUMBERS and not isinstance(x, FakeTensor)


def run_as_on_gpu(network: nn.Module) -> None:
    """Let a network do as one does on a GPU; every expert of a mixture has as many rows as the others."""
    for module in network.modules():
        if isinstance(module, GatedMLP):
            module.cpu_rows = sys.maxsize
        if isinstance(module, Experts):  # nobody knows what a router will say
            module.forward = partial(_evenly, module.forward)  # type: ignore[method-assign]


def _evenly(forward: Callable[..., Tensor], x_RD: Tensor, count_E: Tensor) -> Tensor:
    rows, experts = len(x_RD), len(count_E)
    ends = torch.arange(experts + 1) * rows // experts
    return forward(x_RD, ends.diff())
