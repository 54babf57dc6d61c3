"""Floating-point operations of GR00T N1.5, counted from its sizes and a batch's true lengths."""

from __future__ import annotations

import numpy as np

from vlarge.contracts import PackedBatch
from vlarge.models.flops import vision_products
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.denoiser import TIME_FEATURES
from vlarge.models.gr00t.layout import feature_lengths, text_lengths


def forward_flops(c: GrootConfig, batch: PackedBatch, num_draws: int = 1) -> float:
    """Matrix products of one forward pass (a multiply and an add count as two); norms and activations are left out.

    Causal attention counts as the whole square of its length.
    """
    text_B = text_lengths(c, batch)
    features_B = feature_lengths(c, text_B)
    products = vision_products(c, float(batch.num_images_B.sum())) + _language(c, text_B) + _features(c, features_B)
    products += batch.num_samples * c.head_width * (c.max_state_dim + c.dit_width)  # the states' tokens
    products += _denoiser(c, features_B, batch.num_actions_B, num_draws)
    actions = float(batch.num_actions_B.sum()) * num_draws
    products += actions * c.dit_width * (c.max_action_dim + 3 * c.dit_width)
    products += actions * c.head_width * (c.head_width + c.max_action_dim)
    return 2 * products


def _language(c: GrootConfig, text_B: np.ndarray) -> float:
    heads, key_values = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    tokens = float(text_B.sum()) + c.attend_padding  # a pad is computed once
    layer = tokens * c.width * (2 * heads + key_values + 3 * c.mlp) + 2 * heads * float((text_B**2).sum())
    return c.depth * layer


def _features(c: GrootConfig, features_B: np.ndarray) -> float:
    return c.vl_depth * c.width * (12 * c.width * float(features_B.sum()) + 2 * float((features_B**2).sum()))


def _denoiser(c: GrootConfig, features_B: np.ndarray, actions_B: np.ndarray, num_draws: int) -> float:
    width, tokens_B = c.dit_width, c.draw_tokens + actions_B
    products = float(num_draws * len(actions_B)) * width * (TIME_FEATURES + width + 2 * width * (c.dit_depth + 1))
    products += num_draws * float(actions_B.sum()) * width * c.head_width
    for layer in range(c.dit_depth):
        queries_B = num_draws * (tokens_B if layer < c.last_own_layer else actions_B)
        keys_B = tokens_B if layer % 2 else features_B
        keys, key_width = (num_draws * float(keys_B.sum()), width) if layer % 2 else (float(keys_B.sum()), c.width)
        products += 10 * width**2 * float(queries_B.sum()) + 2 * width * key_width * keys
        products += 2 * width * float((queries_B * keys_B).sum())
    return products
