"""The pipeline axis: each process has some of the layers, and micro-batches pass through one after the other.

torch's schedules send tensors of one shape. What a stage sends is filled up to the largest micro-batch of the step and
cut off again where it arrives, so that only the sending knows of it: nothing is computed on the fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import _PipelineStageBase

from vlarge.models.division import Division
from vlarge.models.network import Inputs, PolicyNetwork
from vlarge.train.health.pulse import BACKWARD, EXCHANGE, FORWARD, Pulse
from vlarge.train.parallel.tensor import SpreadRows

Precision = Callable[[], AbstractContextManager[None]]
Loss = Callable[[Tensor, int], Tensor]  # of the velocities of a micro-batch, and its number


class Stage(nn.Module):
    """Some layers of a network, as its forward pass. number: of `num_stages`. precision: that it runs in."""

    def __init__(
        self, network: PolicyNetwork[Any, Any], layers: range, number: int, num_stages: int, precision: Precision
    ) -> None:
        super().__init__()
        self.precision = precision
        self.network, self.layers, self.number, self.num_stages = network, layers, number, num_stages
        self.work: list[Inputs[Any]] = []
        self.coming: tuple[int, ...] = ()  # rows of what arrives, and of what goes on, filled up
        self.leaving: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.num_stages - 1

    def forward(self, *stream: Tensor, micro: Tensor) -> tuple[Tensor, ...]:
        """Micro-batch `micro` of the work, from what the stage before has sent: velocities, or what the next reads."""
        with self.precision():
            return self._run(stream, self.work[int(micro)])

    def _run(self, stream: tuple[Tensor, ...], inputs: Inputs[Any]) -> tuple[Tensor, ...]:
        if self.is_first:
            stream = self.network.enter(inputs)
        else:
            rows = self._rows(inputs, self.layers.start)
            stream = tuple(x[:n] for x, n in zip(stream, rows, strict=True))
        stream = self.network.advance(stream, self.layers, inputs)
        going = (self.network.leave(stream, inputs),) if self.is_last else stream
        # Conditions may be in the precision of products; what is received was announced in fp32.
        return tuple(F.pad(x.float(), (0, 0, 0, n - len(x))) for x, n in zip(going, self.leaving, strict=True))

    def _rows(self, inputs: Inputs[Any], layer: int) -> tuple[int, ...]:
        rows = self.network.rows
        shapes = self.network.stream_shapes(inputs.layout, layer)
        return tuple(
            rows.num_own(s.num_rows) if s.is_spread and isinstance(rows, SpreadRows) else s.num_rows for s in shapes
        )

    def take(self, work: list[Inputs[Any]]) -> None:
        """The micro-batches of one step."""
        self.work = work
        self.coming = () if self.is_first else self._most(self.layers.start)
        velocities = (max(len(inputs.noised_SA) for inputs in work),)
        self.leaving = velocities if self.is_last else self._most(self.layers.stop)

    def _most(self, cut: int) -> tuple[int, ...]:
        return tuple(max(rows) for rows in zip(*(self._rows(inputs, cut) for inputs in self.work), strict=True))

    def examples(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tensors without numbers, of the shapes that arrive and go on."""
        velocity_width = (self.work[0].noised_SA.shape[1],)
        coming = () if self.is_first else self._widths(self.layers.start)
        leaving = velocity_width if self.is_last else self._widths(self.layers.stop)
        return _empty(self.coming, coming), _empty(self.leaving, leaving)

    def _widths(self, cut: int) -> tuple[int, ...]:
        return tuple(shape.width for shape in self.network.stream_shapes(self.work[0].layout, cut))


def _empty(rows: Sequence[int], widths: Sequence[int]) -> tuple[Tensor, ...]:
    return tuple(torch.empty(n, width, device="meta") for n, width in zip(rows, widths, strict=True))


def keep_layers(network: nn.Module, division: Division, layers: range) -> None:
    """Drop the parameters of all others; those of entering stay with the first layer, of leaving with the last."""
    for kind in ("parameters", "buffers"):
        for name, _ in list(getattr(network, f"named_{kind}")()):
            if min(max(division.layer_of(name), 0), division.num_layers - 1) not in layers:
                parent, _, own = name.rpartition(".")
                getattr(network.get_submodule(parent), f"_{kind}")[own] = None


def run_pipeline(
    stages: Sequence[tuple[Stage, nn.Module]], group: dist.ProcessGroup, device: torch.device, loss: Loss, pulse: Pulse
) -> Tensor:
    """Forward and backward passes of all micro-batches that the stages have taken; the sum of the losses, if here.

    stages: of this process, each with what runs it. pulse: is told what is done, and of the waiting for other stages.
    """
    num_micro = len(stages[0][0].work)
    pipes: list[_PipelineStageBase] = [_Pipe(stage, runner, group, device, pulse) for stage, runner in stages]

    def of_micro(leaving: tuple[Tensor], micro: Tensor) -> Tensor:
        work = stages[-1][0].work[int(micro)]
        with pulse.section(FORWARD):
            return loss(leaving[0][: len(work.noised_SA)], int(micro))

    schedule = (
        Schedule1F1B(pipes[0], num_micro, of_micro, scale_grads=False)
        if len(pipes) == 1
        else ScheduleInterleaved1F1B(pipes, num_micro, of_micro, scale_grads=False)
    )
    numbers, losses = torch.arange(num_micro), list[Tensor]()
    has_last = any(stage.is_last for stage, _ in stages)
    told: dict[str, Any] = {"target": numbers, "losses": losses} if has_last else {}
    with pulse.section(EXCHANGE):
        schedule.step(micro=numbers, return_outputs=False, **told)
    return torch.stack(losses).detach().sum() if losses else torch.zeros((), device=device)


class _Pipe(PipelineStage):
    """torch's, which is told apart from its waiting."""

    def __init__(
        self, stage: Stage, runner: nn.Module, group: dist.ProcessGroup, device: torch.device, pulse: Pulse
    ) -> None:
        super().__init__(runner, stage.number, stage.num_stages, device, *stage.examples(), group)
        self._pulse = pulse

    def forward_one_chunk(self, *args: Any, **more: Any) -> Any:
        with self._pulse.section(FORWARD):
            return super().forward_one_chunk(*args, **more)

    def backward_one_chunk(self, *args: Any, **more: Any) -> Any:
        with self._pulse.section(BACKWARD):
            return super().backward_one_chunk(*args, **more)
