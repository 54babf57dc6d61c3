"""How a network is run without changing what it computes: layers recomputed for the backward pass, regions compiled."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layers(model: nn.Module) -> None:
    """Keep each layer's inputs only, and run it again in the backward pass (arXiv 1604.06174).

    Layers are what stands in a ModuleList. Memory falls to about that of one layer, for a third more work.
    """
    for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def compile_regions(model: nn.Module, backend: str = "inductor") -> None:
    """Compile the parts that treat each row by itself (`is_row_wise`), once for any number of rows.

    Attention stays as it is: its segments differ from batch to batch, and its kernels are fused already.
    """
    for module in model.modules():
        if getattr(module, "is_row_wise", False):
            module.compile(backend=backend, dynamic=True)
