"""LeRobot's padded SmolVLA beside ours: sizes, inputs and losses of the one for the other."""

from __future__ import annotations

from typing import Any

from reference import packed, vision_sizes
from torch import Tensor

from vlarge.models.smolvla.config import SmolVLAConfig
from vlarge.models.smolvla.model import SmolVLA


def sizes_of(c: dict[str, Any]) -> SmolVLAConfig:
    expert_width = int(c["width"] * c["expert_ratio"])
    return SmolVLAConfig(
        vocab_size=c["vocab"],
        width=c["width"],
        depth=c["layers"],
        mlp=c["mlp"],
        heads=c["heads"],
        kv_heads=c["kv_heads"],
        head_dim=c["head_dim"],
        expert_width=expert_width,
        expert_mlp=-(-4 * (2 * expert_width // 3) // 256) * 256,  # LeRobot rounds it up
        **vision_sizes(c["vision"]),
        scale_factor=c["scale_factor"],
        self_attn_every=c["self_attn_every"],
        action_horizon=c["chunk"],
        max_action_dim=c["max_action"],
        max_state_dim=c["max_state"],
        denoise_steps=c["steps"],
    )


def velocity_and_loss(model: SmolVLA, t: dict[str, Tensor], c: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Of ours, on the reference's inputs without padded steps: its loss is the mean over the real values."""
    valid = ~t["in.action_is_pad"]
    actions, noise = t["in.actions"][valid], t["in.noise"][valid]
    actions = padded_columns(actions, c["max_action"])
    time = t["in.time"][:, None].expand_as(valid)[valid][:, None]
    velocity = model(packed(t, c, valid), time * noise + (1 - time) * actions, t["in.time"])
    return velocity, (velocity - (noise - actions))[:, : c["action_dim"]].square().mean()


def padded_columns(actions_SA: Tensor, width: int) -> Tensor:
    """Zeros after the real dimensions."""
    padded = actions_SA.new_zeros(len(actions_SA), width)
    padded[:, : actions_SA.shape[1]] = actions_SA
    return padded
