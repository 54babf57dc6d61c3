"""Who writes what: each process its shards, and of what several hold the least busy one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from vlarge.contracts import InputError
from vlarge.train.checkpoint.peers import Peers


class Planning:
    """The plan of a state, made together by all processes and kept as long as none has other names, shapes or layout.

    plan: what this process writes. metadata: what the checkpoint holds; on the main process only.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._form: dict[str, Any] | None = None
        self.plan = SavePlan([])
        self.metadata = Metadata({})

    def follow(self, state: dict[str, Any], leaves: Mapping[str, Any]) -> None:
        """Bring the plan up to date with the state, whose flat form is `leaves`."""
        form = {name: _form(value) for name, value in leaves.items()}
        if self._peers.reduce(lambda: form != self._form, any):
            self.plan = self._peers.deal(lambda: _own_plan(state), self._joint_plans)
            self._form = form

    def _joint_plans(self, plans: list[SavePlan]) -> list[SavePlan]:
        require_whole(item for plan in plans for item in plan.items)
        planner = DefaultSavePlanner()
        joint, self.metadata = planner.create_global_plan(plans)
        return FileSystemWriter("").prepare_global_plan(joint)  # which names the files


def _form(value: Any) -> Any:
    """What a plan depends on."""
    if isinstance(value, DTensor):
        return value.shape, value.dtype, value.device_mesh, value.placements
    return (value.shape, value.dtype) if isinstance(value, Tensor) else None


def _own_plan(state: dict[str, Any]) -> SavePlan:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state)
    return planner.create_local_plan()


def require_whole(items: Iterable[WriteItem]) -> None:
    """Raise InputError for a tensor of which the processes hold another size, or not every part."""
    sizes: dict[str, tuple[int, ...]] = {}
    parts: dict[str, dict[Any, int]] = {}
    for name, data in ((item.index, item.tensor_data) for item in items):
        if data is not None:
            if sizes.setdefault(name.fqn, data.size) != data.size:
                raise InputError(f"{name.fqn} is {[*sizes[name.fqn]]} on one process and {[*data.size]} on another")
            parts.setdefault(name.fqn, {})[name.offset] = math.prod(data.chunk.sizes)
    for fqn, size in sizes.items():
        if sum(parts[fqn].values()) != math.prod(size):
            raise InputError(
                f"the processes together hold {sum(parts[fqn].values())} of {math.prod(size)} values of {fqn}"
            )
