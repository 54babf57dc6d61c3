"""The data axis: every process holds the whole model and a share of each global batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vlarge.train.parallel.mesh import World


def replicate(model: nn.Module, world: World, *, partly_used: bool) -> nn.Module:
    """The model with bucketed gradient all-reduce; unchanged when alone.

    Gradients come out averaged: scale a loss that is a share of a global sum by `world.size`. partly_used: whether some
    batches leave parameters without gradient.
    """
    if world.size == 1:
        return model
    return DistributedDataParallel(
        model, find_unused_parameters=partly_used, gradient_as_bucket_view=True, broadcast_buffers=False
    )


def reducing(replica: nn.Module, *, now: bool) -> AbstractContextManager[object]:
    """Around the forward and backward pass of one micro-batch: gradients are summed over processes with the last."""
    if now or not isinstance(replica, DistributedDataParallel):
        return nullcontext()
    return replica.no_sync()
