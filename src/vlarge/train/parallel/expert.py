"""The expert axis: each process has some of the experts, and rows travel to theirs and back. None is dropped.

Experts are those of a mixture, and the layers that GR00T has for each robot. Rows arrive sorted by expert from every
process; they are sorted once more, so that an expert multiplies all of its rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from vlarge.models.gr00t.embodiment import ActionEncoder, EmbodimentLinear, EmbodimentMLP, Groups
from vlarge.models.moe import Experts
from vlarge.models.runs import ranges
from vlarge.train.health.pulse import EXCHANGE
from vlarge.train.parallel.collectives import Line
from vlarge.train.parallel.weights import ALIKE, place, use_local

HOLDERS = (Experts, EmbodimentLinear)  # of parameters [experts, ...]
TRAVELLERS = (Experts, EmbodimentMLP, ActionEncoder)  # whose rows travel, with all that they hold


def divide_experts(model: nn.Module, mesh: DeviceMesh, line: Line | None) -> None:
    """Place all experts: divided along the axis "ep" of the mesh, alike along others; line: the processes along it."""
    placements = [Shard(0) if axis == "ep" else ALIKE for axis in mesh.mesh_dim_names or ()]
    for module in model.modules():
        if isinstance(module, HOLDERS):
            for name, _ in list(module.named_parameters(recurse=False)):
                place(module, name, mesh, placements)
            use_local(module)
    if line is None:
        return
    for module in model.modules():
        if isinstance(module, Experts):
            module.forward = partial(_mixture, module.forward, line)  # type: ignore[method-assign]
        elif isinstance(module, EmbodimentMLP | ActionEncoder):
            module.forward = partial(_robots, module.forward, line, module.first)  # type: ignore[method-assign]


class Journey:
    """Where rows of a batch go and how they come back.

    counts_E: rows for each of all experts; rows are sorted by expert.
    """

    def __init__(self, counts_E: Sequence[int], line: Line) -> None:
        self.line = line
        self.sent = np.array(counts_E, np.int64).reshape(line.size, -1)  # [process, its experts]
        arrived = torch.empty(self.sent.size, dtype=torch.int64)
        with line.pulse.section(EXCHANGE):
            dist.all_to_all_single(arrived, torch.from_numpy(self.sent.flatten()), group=line.group)
        self.received = arrived.numpy().reshape(line.size, -1)  # [process, own experts]
        starts = np.cumsum(self.received) - self.received.flatten()
        by_expert = starts.reshape(self.received.shape).T.flatten(), self.received.T.flatten()
        self.order = torch.from_numpy(ranges(*by_expert))

    @property
    def counts(self) -> np.ndarray:
        """Rows for each of the own experts, from everywhere."""
        return self.received.sum(0)

    def there(self, x: Tensor) -> Tensor:
        """Rows of the own experts, sorted by expert."""
        arrived = self.line.exchange(x, self.sent.sum(1).tolist(), self.received.sum(1).tolist())
        return arrived.index_select(0, self.order.to(x.device))

    def back(self, y: Tensor) -> Tensor:
        """What came of this process's rows, in their order."""
        y = y.index_select(0, self.order.argsort().to(y.device))
        return self.line.exchange(y, self.received.sum(1).tolist(), self.sent.sum(1).tolist())


def _mixture(forward: Callable[..., Tensor], line: Line, x_RD: Tensor, count_E: Tensor) -> Tensor:
    journey = Journey([int(n) for n in count_E.tolist()], line)
    return journey.back(forward(journey.there(x_RD), torch.from_numpy(journey.counts).to(count_E)))


def _robots(forward: Callable[..., Tensor], line: Line, first: EmbodimentLinear, *args: Any) -> Tensor:
    # args: tensors of rows, then whose they are.
    *rows, groups = args
    counts_E = np.zeros(len(first.weight), np.int64)
    counts_E[list(groups.numbers)] = groups.counts
    journey = Journey(counts_E.tolist(), line)
    there = [journey.there(x.index_select(0, groups.order_T)) for x in rows]
    own = Groups.of(np.repeat(np.arange(len(journey.counts)), journey.counts)).to(rows[0].device)
    return journey.back(forward(*there, own)).index_select(0, groups.back_T)
