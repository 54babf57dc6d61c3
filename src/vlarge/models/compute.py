"""How a network is run without changing what it computes: layers recomputed for the backward pass, regions compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.linear.default, aten._grouped_mm.default,
    aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default,
    aten._flash_attention_forward.default,
}  # fmt: skip
AMOUNTS = ("none", "selective", "layers")


def recompute_layers(model: nn.Module, amount: str = "layers") -> None:
    """Run layers again in the backward pass instead of keeping everything (arXiv 1604.06174). Layers are what stands
    in a ModuleList.

    "layers" keeps each one's inputs only: memory falls to about that of one layer, for a third more work. "selective"
    also keeps the results of matrix products and attention: what is run again costs little (arXiv 2205.05198).
    """
    if amount not in AMOUNTS:
        raise ValueError(f"recompute {amount!r} is none of {AMOUNTS}")
    if amount == "none":
        return
    contexts = partial(create_selective_checkpoint_contexts, _keep_products)
    again = partial(
        checkpoint, use_reentrant=False, preserve_rng_state=False,
        context_fn=contexts if amount == "selective" else noop_context_fn,
    )  # fmt: skip
    for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            layer.forward = partial(again, layer.forward)


def _keep_products(_context: Any, operation: Any, *_args: Any, **_more: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def compile_regions(model: nn.Module, backend: str = "inductor") -> None:
    """Compile the parts that treat each row by itself (`is_row_wise`), once for any number of rows.

    Attention stays as it is: its segments differ from batch to batch, and its kernels are fused already.
    """
    for module in model.modules():
        if getattr(module, "is_row_wise", False):
            module.forward = torch.compile(module.forward, backend=backend, dynamic=True)
