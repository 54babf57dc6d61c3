"""Collectives over rows with a backward pass, for any number of rows on each process.

What is padded is what is sent, never what is computed: processes differ by at most one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vlarge.train.health.pulse import EXCHANGE, Pulse


@dataclass(frozen=True)
class Line:
    """The processes along one axis of the mesh, and where this one stands among them. pulse: is told of the waiting."""

    group: dist.ProcessGroup
    rank: int
    size: int
    pulse: Pulse

    def shares(self, num_rows: int) -> list[int]:
        """How many rows each process has, one after the other."""
        return [(i + 1) * num_rows // self.size - i * num_rows // self.size for i in range(self.size)]

    def own(self, x: Tensor) -> Tensor:
        """This process's rows of all."""
        shares = self.shares(len(x))
        return x.narrow(0, sum(shares[: self.rank]), shares[self.rank])

    def gather(self, x: Tensor, num_rows: int) -> Tensor:
        """All rows from everybody's own; gradients are summed and handed back."""
        return _Gather.apply(x, self, num_rows)

    def reduce(self, x: Tensor) -> Tensor:
        """Own rows of the sum over all processes; gradients are gathered."""
        return _Reduce.apply(x, self)

    def exchange(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows [sum(received), ...]: `sent[j]` of x, one after the other, go to process j; likewise gradients back."""
        return _Exchange.apply(x, self, list(sent), list(received))


def _gathered(x: Tensor, line: Line, shares: Sequence[int]) -> Tensor:
    most = max(shares)
    padded = torch.nn.functional.pad(x, (0, 0) * (x.ndim - 1) + (0, most - len(x)))
    found = x.new_empty(line.size * most, *x.shape[1:])
    with line.pulse.section(EXCHANGE):
        dist.all_gather_into_tensor(found, padded.contiguous(), group=line.group)
    if most == min(shares):
        return found
    return torch.cat([part[:n] for part, n in zip(found.split(most), shares, strict=True)])


def _reduced(x: Tensor, line: Line, shares: Sequence[int]) -> Tensor:
    most = max(shares)
    if most != min(shares):
        padding = (0, 0) * (x.ndim - 1)
        x = torch.cat([torch.nn.functional.pad(p, (*padding, 0, most - len(p))) for p in x.split(list(shares))])
    found = x.new_empty(most, *x.shape[1:])
    with line.pulse.section(EXCHANGE):
        dist.reduce_scatter_tensor(found, x.contiguous(), group=line.group)
    return found[: shares[line.rank]]


def _exchanged(x: Tensor, line: Line, sent: list[int], received: list[int]) -> Tensor:
    found = x.new_empty(sum(received), *x.shape[1:])
    with line.pulse.section(EXCHANGE):
        dist.all_to_all_single(found, x.contiguous(), received, sent, group=line.group)
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, line: Line, num_rows: int) -> Tensor:
        ctx.line, ctx.shares = line, line.shares(num_rows)
        return _gathered(x, line, ctx.shares)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _reduced(grad, ctx.line, ctx.shares), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, line: Line) -> Tensor:
        ctx.line, ctx.shares = line, line.shares(len(x))
        return _reduced(x, line, ctx.shares)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad, ctx.line, ctx.shares), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, line: Line, sent: list[int], received: list[int]) -> Tensor:
        ctx.line, ctx.sent, ctx.received = line, sent, received
        return _exchanged(x, line, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, ctx.line, ctx.received, ctx.sent), None, None, None
