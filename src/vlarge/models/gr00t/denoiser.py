"""GR00T's diffusion transformer: layers that look at the features take turns with layers that look at the draw itself.

Behaviour matched: the DiT of Isaac-GR00T N1.5. Its last layer among a draw's own tokens is where the state's and the
model's own tokens end, since nothing reads them any more: from there on only actions are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.layout import GrootLayout
from vlarge.models.gr00t.transformer import AdaptiveLayerNorm, DenoiserBlock
from vlarge.models.language import KeysValues

TIME_FEATURES = 256
MAX_PERIOD = 10_000.0  # over two pi
OUT_NORM_EPS = 1e-6


def bucket(time_D: Tensor, num_buckets: int) -> Tensor:
    """Flow times from 0 to 1 as whole numbers, in fp32."""
    return (time_D.float() * num_buckets).trunc()


def condition_features(bucket_D: Tensor) -> Tensor:
    """Cosines, then sines [D, 256]; the last frequency is 1 / 10000.

    Angles reach 1000, where fp32 has errors that show: they are the ones that the released weights were trained with.
    """
    half = TIME_FEATURES // 2
    exponents = torch.arange(half, device=bucket_D.device) * -math.log(MAX_PERIOD) / (half - 1)
    angles = bucket_D[:, None] * exponents.exp()
    return torch.cat((angles.cos(), angles.sin()), -1)


def action_features(bucket_D: Tensor, width: int) -> Tensor:
    """Sines, then cosines [D, width]; frequencies end before 1 / 10000. As to fp32, see `condition_features`."""
    half = width // 2
    exponents = torch.arange(half, device=bucket_D.device) * -(math.log(MAX_PERIOD) / half)
    angles = bucket_D[:, None] * exponents.exp()
    return torch.cat((angles.sin(), angles.cos()), -1)


class Denoiser(nn.Module):
    """Tokens of draws to what the actions are decoded from."""

    def __init__(self, c: GrootConfig) -> None:
        super().__init__()
        self.last_own = c.last_own_layer
        width = c.dit_width
        self.time_in = nn.Linear(TIME_FEATURES, width)
        self.time_out = nn.Linear(width, width)
        contexts = [width if layer % 2 else c.width for layer in range(c.dit_depth)]
        self.blocks = nn.ModuleList(DenoiserBlock(width, context, c.dit_heads) for context in contexts)
        self.norm = AdaptiveLayerNorm(width, OUT_NORM_EPS)
        self.out = nn.Linear(width, c.head_width)

    def keys_values(self, features_VD: Tensor) -> list[KeysValues]:
        """Of the features, for each layer that looks at them: the same at every step and for every draw."""
        return [cast(DenoiserBlock, block).attention.keys_values(features_VD) for block in self.blocks[::2]]

    def forward(self, x_QD: Tensor, bucket_D: Tensor, keys_values: Sequence[KeysValues], layout: GrootLayout) -> Tensor:
        """[S, head_width]: of the actions only."""
        time_DD = self.time_out(F.silu(self.time_in(condition_features(bucket_D))))
        condition = F.silu(time_DD)
        for layer, block in enumerate(self.blocks):
            early = layer < self.last_own
            draw = layout.draw_Q if layer <= self.last_own else layout.draw_S
            if layer % 2:
                segments = layout.own if early else layout.own_actions
                x_QD = block(x_QD, condition, draw, segments, only=None if early else layout.actions_S)
            else:
                segments = layout.cross if early else layout.cross_actions
                x_QD = block(x_QD, condition, draw, segments, keys_values=keys_values[layer // 2])
        return self.out(self.norm(x_QD, condition, layout.draw_S))
