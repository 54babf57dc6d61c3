"""Every collective that a process takes part in, counted by kind and by the axes of the mesh that it goes along.

It sees what torch hands to a process group, whoever asked for it: our own calls, FSDP, DDP, DTensor and pipelining. So
the same count stands beside an imagined run and a real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlarge.train.config import AXES, ParallelConfig
from vlarge.train.parallel.mesh import coordinates


class Call(NamedTuple):
    """How an operator of torch is counted. group, whole: which of its arguments are the group, and what is counted."""

    kind: str
    group: int
    whole: int


# What is counted is the whole: what is gathered, or reduced before it is scattered.
CALLS = {
    "c10d.allreduce_": Call("all-reduce", 1, 0),
    "c10d.allgather_": Call("all-gather", 2, 0),
    "c10d._allgather_base_": Call("all-gather", 2, 0),
    "c10d._reduce_scatter_base_": Call("reduce-scatter", 2, 1),
    "c10d.alltoall_base_": Call("all-to-all", 2, 1),
    "c10d.broadcast_": Call("broadcast", 1, 0),
    "c10d.gather_": Call("gather", 2, 1),
    "c10d.scatter_": Call("scatter", 2, 0),
    "c10d.send": Call("send", 1, 0),
    "c10d.recv_": Call("receive", 1, 0),
    "_c10d_functional.all_reduce": Call("all-reduce", 2, 0),
}
NO_CALLS = ("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd", "c10d.barrier")  # send nothing
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class Row(NamedTuple):
    """Collectives of one kind along the same axes, on one process. num_bytes: of all of them together.

    Of an all-gather the gathered whole counts, of a reduce-scatter the whole that is reduced, of an all-to-all what
    this process hands out (its own part too), else the tensor.
    """

    axes: tuple[str, ...]
    kind: str
    num_calls: int
    num_bytes: int


def place(row: Sequence[Any]) -> tuple[list[int], str]:
    """What rows are sorted by: their axes, then their kind, which come first in a row."""
    return [AXES.index(axis) for axis in row[0]], row[1]


class Traffic(TorchDispatchMode):
    """Inside the block, counts the collectives of this thread. degrees: of the mesh that the processes stand on."""

    def __init__(self, degrees: ParallelConfig) -> None:
        super().__init__()
        self._degrees = degrees
        self._axes: dict[tuple[int, ...], tuple[str, ...]] = {}
        self._counts: Counter[tuple[tuple[str, ...], str]] = Counter()
        self._bytes: Counter[tuple[tuple[str, ...], str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # first it takes itself apart; what that asks for comes here again
        if func.namespace in NAMESPACES:
            self._add(f"{func.namespace}.{func.overloadpacket.__name__}", args)
        return func(*args, **(kwargs or {}))

    def rows(self) -> tuple[Row, ...]:
        """What was counted, in the order of the axes."""
        found = [Row(*key, num_calls, self._bytes[key]) for key, num_calls in self._counts.items()]
        return tuple(sorted(found, key=place))

    def _add(self, name: str, args: Sequence[Any]) -> None:
        if name in NO_CALLS:
            return
        if name not in CALLS:
            raise NotImplementedError(f"no rule says how {name} is counted: add it to CALLS")
        call = CALLS[name]
        key = self._along(_ranks(args[call.group])), call.kind
        self._counts[key] += 1
        self._bytes[key] += num_bytes(tree_leaves(args[call.whole]))

    def _along(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        if ranks not in self._axes:
            self._axes[ranks] = axes_between(self._degrees, ranks)
        return self._axes[ranks]


def axes_between(degrees: ParallelConfig, ranks: Iterable[int]) -> tuple[str, ...]:
    """The axes along which these ranks differ."""
    places = [coordinates(degrees, rank) for rank in ranks]
    return tuple(axis for axis in AXES if len({place[axis] for place in places}) > 1)


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Of all of their numbers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _ranks(group: Any) -> tuple[int, ...]:
    # Of a group as an operator takes it: boxed, or by its name.
    found: Any = _resolve_process_group(group) if isinstance(group, str) else dist.ProcessGroup.unbox(group)  # type: ignore[arg-type]
    return tuple(dist.get_process_group_ranks(found))
