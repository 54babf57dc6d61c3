"""The data axis: every process holds the whole model and a share of each global batch."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vlarge.train.parallel.mesh import World


def replicate(model: nn.Module, world: World) -> nn.Module:
    """The model with bucketed gradient all-reduce; unchanged when alone.

    Gradients come out averaged: scale a loss that is a share of a global sum by `world.size`.
    """
    if world.size == 1:
        return model
    return DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
