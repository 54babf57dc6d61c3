"""Rotary position embedding (arXiv 2104.09864) in the half-rotation layout of transformers' Gemma, Llama and Qwen."""

from __future__ import annotations

import torch
from torch import Tensor

Rotary = tuple[Tensor, Tensor]  # cosines and sines [T, D] of each token's position


def rotary_angles(positions_T: Tensor, head_dim: int, base: float = 10_000.0) -> Rotary:
    """cos and sin [T, head_dim] in fp32 for integer positions."""
    exponents = torch.arange(0, head_dim, 2, device=positions_T.device, dtype=torch.float32) / head_dim
    angles = positions_T.float()[:, None] * (base**-exponents)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x_THD: Tensor, rotary: Rotary) -> Tensor:
    """Queries or keys, turned by their positions."""
    cos_TD, sin_TD = rotary
    first, second = x_THD.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x_THD * cos_TD[:, None].to(x_THD.dtype) + turned * sin_TD[:, None].to(x_THD.dtype)
