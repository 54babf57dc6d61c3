"""LeRobot's padded π0 and π0.5 beside ours: sizes, inputs and losses of the one for the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.pi0.config import Pi0Config
from vlarge.models.pi0.model import Pi0


def sizes_of(c: dict, has_state_token: bool) -> Pi0Config:
    v = c["vision"]
    return Pi0Config(
        vocab_size=c["vocab"],
        width=c["width"],
        depth=c["depth"],
        mlp=c["mlp"],
        heads=c["heads"],
        kv_heads=1,
        head_dim=c["head_dim"],
        expert_width=c["expert_width"],
        expert_mlp=c["expert_mlp"],
        vision_width=v["width"],
        vision_depth=v["depth"],
        vision_mlp=v["mlp"],
        vision_heads=v["heads"],
        patch=v["patch"],
        image_size=v["image"],
        action_horizon=c["chunk"],
        max_action_dim=c["max_action"],
        denoise_steps=c["steps"],
        max_state_dim=c["max_state"] if has_state_token else 0,
    )


def packed(t: dict, c: dict) -> PackedBatch:
    """The reference's padded inputs without their padding: present cameras and real tokens only."""
    present, tokens = t["in.image_mask"], t["in.token_mask"]
    num_samples = len(present)
    return PackedBatch(
        sample_ids_B3=np.zeros((num_samples, 3), np.int64),
        images_NHWC=t["in.images"][present].permute(0, 2, 3, 1).numpy(),
        num_images_B=present.sum(1).numpy(),
        text_T=t["in.tokens"][tokens].numpy(),
        num_text_B=tokens.sum(1).numpy(),
        state_BA=t["in.state"][:, : c["state_dim"]].numpy()
        if "in.state" in t
        else np.zeros((num_samples, 1), np.float32),
        actions_SA=t["in.actions"].flatten(0, 1).numpy(),
        num_actions_B=np.full(num_samples, c["chunk"]),
        action_dims_B=np.full(num_samples, c["action_dim"]),
        embodiments_B=np.zeros(num_samples, np.int64),
    )


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)
    assert error <= tolerance, f"{error:.2e} > {tolerance:.0e}"


def velocity_and_loss(model: Pi0, t: dict[str, Tensor], c: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Of ours, on the reference's inputs: its loss is the mean over the real action dimensions."""
    time = t["in.time"].repeat_interleave(c["chunk"])[:, None]
    actions, noise = t["in.actions"].flatten(0, 1), t["in.noise"].flatten(0, 1)
    velocity = model(packed(t, c), time * noise + (1 - time) * actions, t["in.time"])
    return velocity, (velocity - (noise - actions))[:, : c["action_dim"]].square().mean()
