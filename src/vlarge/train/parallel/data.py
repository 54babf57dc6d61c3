"""The data axes: gradients summed over processes with different samples.

Plain copies (DDP, in buckets) where nothing else is divided; otherwise FSDP2 over the sharded axes, with copies of it
over `dp_replicate`. A loss is a share of a global sum, so gradients are summed, never averaged (law M4).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from vlarge.train.health.pulse import COMMUNICATE, EXCHANGE, Pulse

KEPT = MixedPrecisionPolicy(cast_forward_inputs=False)


def replicate(model: nn.Module) -> nn.Module:
    """The model with bucketed gradient all-reduce over all processes. Every process must use every parameter."""
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    # Not the function itself: torch wants to see the type of its argument, which here is text.
    replica.register_comm_hook(None, lambda _, bucket: _sum(bucket))
    return replica


def _sum(bucket: dist.GradBucket) -> Future[Any]:
    summed = bucket.buffer()
    work = dist.all_reduce(summed, async_op=True)
    assert work is not None

    def after(done: Future[Any]) -> Tensor:
        done.value()  # raises what went wrong
        return summed

    return work.get_future().then(after)


def shard(
    root: nn.Module,
    units: Sequence[tuple[nn.Module, DeviceMesh, torch.dtype]],
    mesh: DeviceMesh,
    pulse: Pulse,
) -> None:
    """Divide parameters, gradients and optimizer state: those of each unit, and last what is left of the root.

    Each unit says in what its weights travel; gradients are summed in fp32. pulse: is told of the waiting.
    """
    for unit, own_mesh, dtype in units:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(unit, mesh=own_mesh, mp_policy=KEPT if dtype == torch.float32 else policy)
    fully_shard(root, mesh=mesh, mp_policy=KEPT)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_all_gather(_Gather(pulse))
            module.set_custom_reduce_scatter(_Scatter(pulse))


class _Gather(DefaultAllGather):
    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def __call__(self, *args: Any, **more: Any) -> dist.Work | None:
        with self._pulse.section(EXCHANGE):
            work = super().__call__(*args, **more)
        return work and _Awaited(work, self._pulse)


class _Scatter(DefaultReduceScatter):
    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def __call__(self, *args: Any, **more: Any) -> dist.Work:
        with self._pulse.section(EXCHANGE):
            work = super().__call__(*args, **more)
        return work and _Awaited(work, self._pulse)


class _Awaited(dist.Work):
    """A collective whose waiting is told."""

    def __init__(self, work: dist.Work, pulse: Pulse) -> None:
        super().__init__()
        self._work, self._pulse = work, pulse

    def wait(self, *args: Any) -> bool:
        with self._pulse.section(EXCHANGE):
            return self._work.wait(*args)


def reducing(replica: nn.Module, *, now: bool) -> AbstractContextManager[object]:
    """Around the forward and backward pass of one micro-batch: gradients are summed over copies with the last one.

    Those of divided weights are divided with each, since whole ones would need the memory that was saved.
    """
    if isinstance(replica, FSDPModule):
        replica.set_requires_all_reduce(now)
        replica.set_is_last_backward(now)
    if now or not isinstance(replica, DistributedDataParallel):
        return nullcontext()
    return replica.no_sync()


def mark_wait(replica: nn.Module, loss: Tensor, pulse: Pulse) -> None:
    """Let the backward pass of `loss` tell the time of its own work from its wait for the other processes' gradients.

    The engine calls back when all gradients are there; DDP, which asked later, waits only then.
    """
    if not isinstance(replica, DistributedDataParallel) or not replica.require_backward_grad_sync:
        return

    def at_the_beginning(_gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: pulse.move(COMMUNICATE))

    loss.register_hook(at_the_beginning)
