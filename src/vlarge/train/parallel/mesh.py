"""Where each process stands on the mesh, one axis for each kind of parallelism."""

from __future__ import annotations

from functools import cached_property

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from vlarge.train.config import AXES, DATA_AXES, ParallelConfig
from vlarge.train.parallel.world import World


class Mesh:
    """The processes of a run in rows and columns.

    degrees: with every degree stated. `device_mesh` is None for one process alone.
    """

    def __init__(self, degrees: ParallelConfig, world: World, device_type: str) -> None:
        self.degrees, self.world = degrees, world
        self.device_mesh: DeviceMesh | None = None
        if world.size > 1:
            sizes = tuple(getattr(degrees, axis) for axis in AXES)
            self.device_mesh = init_device_mesh(device_type, sizes, mesh_dim_names=AXES)

    def coordinate(self, axis: str, rank: int | None = None) -> int:
        """Where this process, or another, stands along an axis."""
        return coordinates(self.degrees, self.world.rank if rank is None else rank)[axis]

    def size(self, axis: str) -> int:
        return getattr(self.degrees, axis)

    def group(self, axis: str) -> dist.ProcessGroup:
        """The processes that differ from this one along an axis only."""
        assert self.device_mesh is not None
        return self.device_mesh[axis].get_group()

    def along(self, *axes: str) -> DeviceMesh:
        """The processes that differ along some axes only, in one row."""
        assert self.device_mesh is not None
        return self.device_mesh[axes[0]] if len(axes) == 1 else self.device_mesh[axes]._flatten("_".join(axes))

    @property
    def data_rank(self) -> int:
        """Which share of a global batch is this process's."""
        return data_rank(self.degrees, self.world.rank)

    @property
    def is_lead(self) -> bool:
        """Whether this process reads its share, for all that work on it together."""
        return is_lead(self.degrees, self.world.rank)

    @cached_property
    def sharers(self) -> dist.ProcessGroup | None:
        """The processes that work on one share, its lead first; None where it is alone."""
        if self.degrees.num_data == self.world.size:
            return None
        ranks = range(self.world.size)
        shares = [[r for r in ranks if data_rank(self.degrees, r) == share] for share in range(self.degrees.num_data)]
        group, _ = dist.new_subgroups_by_enumeration(shares, backend=self.world.cpu_backend)
        return group

    @cached_property
    def stage(self) -> dist.ProcessGroup | None:
        """The processes with the same layers; None for this one alone."""
        if self.world.size == 1:
            return None
        ranks = range(self.world.size)
        stages = [[r for r in ranks if coordinates(self.degrees, r)["pp"] == pp] for pp in range(self.degrees.pp)]
        group, _ = dist.new_subgroups_by_enumeration(stages, backend=self.world.cpu_backend)
        return group


def coordinates(degrees: ParallelConfig, rank: int) -> dict[str, int]:
    """Where a rank stands along each axis. The last axis counts fastest."""
    found = {}
    for axis in reversed(AXES):
        rank, found[axis] = divmod(rank, getattr(degrees, axis))
    return found


def data_rank(degrees: ParallelConfig, rank: int) -> int:
    """Which share of a global batch a rank has."""
    where, number = coordinates(degrees, rank), 0
    for axis in DATA_AXES:
        number = number * getattr(degrees, axis) + where[axis]
    return number


def is_lead(degrees: ParallelConfig, rank: int) -> bool:
    """Whether a rank is the first of those that work on one share."""
    return not any(number for axis, number in coordinates(degrees, rank).items() if axis not in DATA_AXES)


def lead_ranks(degrees: ParallelConfig) -> list[int]:
    """All ranks that lead."""
    return [rank for rank in range(degrees.num_processes) if is_lead(degrees, rank)]


def machines(num_processes: int, local_size: int) -> list[range]:
    """The ranks of each machine: `local_size` in a row, as torchrun counts them."""
    return [range(first, first + local_size) for first in range(0, num_processes, local_size)]
