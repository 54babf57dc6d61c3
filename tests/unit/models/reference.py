"""A padded reference's tensors beside ours: its inputs without their padding, and how near results have to be."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from vlarge.contracts import PackedBatch


def packed(t: dict[str, Tensor], c: dict[str, Any], valid_BS: Tensor | None = None) -> PackedBatch:
    """Present cameras, real tokens and, where `valid_BS` says which those are, valid action steps only."""
    present, tokens = t["in.image_mask"], t["in.token_mask"]
    num_samples = len(present)
    state = t["in.state"][:, : c["state_dim"]].numpy() if "in.state" in t else np.zeros((num_samples, 1), np.float32)
    return PackedBatch(
        sample_ids_B3=np.zeros((num_samples, 3), np.int64),
        images_NHWC=t["in.images"][present].permute(0, 2, 3, 1).numpy(),
        num_images_B=present.sum(1).numpy(),
        text_T=t["in.tokens"][tokens].numpy(),
        num_text_B=tokens.sum(1).numpy(),
        state_BA=state,
        actions_SA=(t["in.actions"].flatten(0, 1) if valid_BS is None else t["in.actions"][valid_BS]).numpy(),
        num_actions_B=np.full(num_samples, c["chunk"]) if valid_BS is None else valid_BS.sum(1).numpy(),
        action_dims_B=np.full(num_samples, c["action_dim"]),
        embodiments_B=np.zeros(num_samples, np.int64),
    )


def vision_sizes(v: dict[str, int]) -> dict[str, int]:
    """Of the golden files' vision towers, by our names."""
    names = {"width": "vision_width", "depth": "vision_depth", "mlp": "vision_mlp", "heads": "vision_heads"}
    return {names.get(name, name): value for name, value in v.items() if name != "image"} | {"image_size": v["image"]}


def error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert (found := error(ours, theirs)) <= tolerance, f"{found:.2e} > {tolerance:.0e}"
