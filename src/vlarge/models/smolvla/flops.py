"""Floating-point operations of SmolVLA, counted from its sizes and a batch's true lengths."""

from __future__ import annotations

import numpy as np

from vlarge.contracts import PackedBatch
from vlarge.models.flops import vision_products
from vlarge.models.smolvla.config import SmolVLAConfig


def forward_flops(c: SmolVLAConfig, batch: PackedBatch, num_draws: int = 1) -> float:
    """Matrix products of one forward pass (a multiply and an add count as two); norms and activations are left out.

    Of causal attention the whole square counts.
    """
    prefix_B = batch.num_images_B * c.image_tokens + batch.num_text_B
    vision = vision_products(c, float(batch.num_images_B.sum()))
    return 2 * (vision + _language(c, prefix_B) + _expert(c, prefix_B + 1, batch.num_actions_B, num_draws))


def _language(c: SmolVLAConfig, prefix_B: np.ndarray) -> float:
    # Its tokens are prefixes and states; the last layer has keys and values only.
    heads, kv = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    tokens, num_states = float((prefix_B + 1).sum()), len(prefix_B)
    seen = float((prefix_B**2 + prefix_B + 1).sum())
    layers = (c.depth - 1) * (tokens * (2 * c.width * heads + 3 * c.width * c.mlp) + 2 * heads * seen)
    return layers + tokens * c.depth * c.width * kv + num_states * c.max_state_dim * c.width


def _expert(c: SmolVLAConfig, context_B: np.ndarray, suffix_B: np.ndarray, num_draws: int) -> float:
    heads, kv = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    num_joint = sum(c.is_joint(i) for i in range(c.depth))
    suffix, num_cross = float(suffix_B.sum()) * num_draws, c.depth - num_joint
    layers = suffix * c.depth * (2 * c.expert_width * heads + 3 * c.expert_width * c.expert_mlp)
    layers += num_joint * suffix * c.expert_width * kv + num_cross * float(context_B.sum()) * kv * kv / 2
    pairs = c.depth * float((suffix_B * context_B).sum()) + num_joint * float((suffix_B**2).sum())
    ends = suffix * c.expert_width * (2 * c.max_action_dim + 3 * c.expert_width)
    return layers + 2 * heads * num_draws * pairs + ends
