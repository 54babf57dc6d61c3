"""Floating-point operations of π0 and π0.5, counted from its sizes and a batch's true lengths."""

from __future__ import annotations

from vlarge.contracts import PackedBatch
from vlarge.models.flops import vision_products
from vlarge.models.pi0.config import Pi0Config


def forward_flops(c: Pi0Config, batch: PackedBatch, num_draws: int = 1) -> float:
    """Matrix products of one forward pass (a multiply and an add count as two); norms and activations are left out."""
    prefix_B, suffix_B = batch.num_images_B * c.image_tokens + batch.num_text_B, batch.num_actions_B
    context_B = prefix_B + int(c.has_state_token)
    suffix_tokens = float(suffix_B.sum()) * num_draws
    vision = vision_products(c, float(batch.num_images_B.sum()))
    heads, kv = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    prefix = float(prefix_B.sum()) * (
        (c.depth - 1) * (2 * c.width * heads + 3 * c.width * c.mlp) + c.depth * c.width * kv
    )
    prefix += 2 * (c.depth - 1) * heads * float((prefix_B**2).sum())
    mlp = 3 * c.expert_width * c.expert_mlp
    mlp = c.experts_per_token * mlp + c.num_experts * c.expert_width if c.num_experts else mlp
    expert_layer = c.expert_width * (2 * heads + kv) + mlp
    expert = suffix_tokens * (c.depth * expert_layer + 2 * c.max_action_dim * c.expert_width)
    expert += 2 * c.depth * heads * num_draws * float((suffix_B * (context_B + suffix_B)).sum())
    if c.has_state_token:
        expert += suffix_tokens * 3 * c.expert_width**2  # time mixed into the actions
        expert += batch.num_samples * (c.max_state_dim * c.expert_width + (c.depth - 1) * expert_layer)
        expert += batch.num_samples * c.expert_width * kv + 2 * (c.depth - 1) * heads * float(context_B.sum())
    else:
        expert += batch.num_samples * num_draws * c.expert_width**2 * (6 * c.depth + 4)  # adaptive norms and time
    return 2 * (vision + prefix + expert)
