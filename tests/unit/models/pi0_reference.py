"""LeRobot's padded π0 and π0.5 beside ours: sizes, inputs and losses of the one for the other."""

from __future__ import annotations

from typing import Any

from reference import packed, vision_sizes
from torch import Tensor

from vlarge.models.pi0.config import Pi0Config
from vlarge.models.pi0.model import Pi0


def sizes_of(c: dict, has_state_token: bool) -> Pi0Config:
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
        **vision_sizes(c["vision"]),
        action_horizon=c["chunk"],
        max_action_dim=c["max_action"],
        denoise_steps=c["steps"],
        max_state_dim=c["max_state"] if has_state_token else 0,
    )


def velocity_and_loss(model: Pi0, t: dict[str, Tensor], c: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Of ours, on the reference's inputs: its loss is the mean over the real action dimensions."""
    time = t["in.time"].repeat_interleave(c["chunk"])[:, None]
    actions, noise = t["in.actions"].flatten(0, 1), t["in.noise"].flatten(0, 1)
    velocity = model(packed(t, c), time * noise + (1 - time) * actions, t["in.time"])
    return velocity, (velocity - (noise - actions))[:, : c["action_dim"]].square().mean()
