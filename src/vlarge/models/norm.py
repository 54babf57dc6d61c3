"""Normalisation layers. Statistics are always computed in fp32, whatever the compute dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rms(x_TD: Tensor, eps: float) -> Tensor:
    """x scaled to unit root mean square over its last dim, in fp32."""
    x = x_TD.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class LayerNorm(nn.LayerNorm):
    """torch's, in fp32 whatever its weights have travelled in."""

    def forward(self, x_TD: Tensor) -> Tensor:
        weight, bias = self.weight.float(), self.bias.float()
        return F.layer_norm(x_TD.float(), self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.Module):
    """RMSNorm with a learned scale. offset: 1 where the weight is stored as its distance from one (Gemma), or 0."""

    is_row_wise = True  # each row by itself: see `compute.compile_regions`

    def __init__(self, dim: int, eps: float = 1e-6, offset: float = 1.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - offset))

    def forward(self, x_TD: Tensor) -> Tensor:
        return rms(x_TD, self.eps) * (self.offset + self.weight.float())


class AdaptiveRMSNorm(nn.Module):
    """RMSNorm whose scale and shift come from a condition.

    The projection starts at zero: a new layer is then a plain norm.
    """

    is_row_wise = True
    num_outputs = 2

    def __init__(self, dim: int, cond_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(cond_dim, self.num_outputs * dim)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x_SD: Tensor, cond_BD: Tensor, sample_S: Tensor) -> Tensor:
        """Normalised tokens [S, D]; `sample_S` says which condition each token has."""
        scale, shift = self.dense(cond_BD).float().index_select(0, sample_S).chunk(2, -1)
        return rms(x_SD, self.eps) * (1.0 + scale) + shift


class GatedAdaptiveRMSNorm(AdaptiveRMSNorm):
    """Also gives the gate of the residual branch that follows (both block norms of π0.5's action expert).

    New gates are open, so that branches learn from the first step; openpi's start closed, beside pretrained weights.
    """

    num_outputs = 3

    def __init__(self, dim: int, cond_dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, cond_dim, eps)
        nn.init.ones_(self.dense.bias[2 * dim :])

    def forward(self, x_SD: Tensor, cond_BD: Tensor, sample_S: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Normalised tokens and their gates, both [S, D]."""
        scale, shift, gate = self.dense(cond_BD).float().index_select(0, sample_S).chunk(3, -1)
        return rms(x_SD, self.eps) * (1.0 + scale) + shift, gate
