"""GR00T's diffusion transformer: layers that look at the features take turns with layers that look at the draw itself.

Behaviour matched: the DiT of Isaac-GR00T N1.5. Its last layer among a draw's own tokens is where the state's and the
model's own tokens end, since nothing reads them any more: from there on only actions are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.layout import GrootLayout
from vlarge.models.gr00t.transformer import AdaptiveLayerNorm, DenoiserBlock
from vlarge.models.language import KeysValues
from vlarge.models.rows import WHOLE

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
        self.rows = WHOLE

    def keys_values(self, features_VD: Tensor) -> list[KeysValues]:
        """Of the features, for each layer that looks at them: the same at every step and for every draw."""
        return [cast(DenoiserBlock, block).attention.keys_values(features_VD) for block in self.blocks[::2]]

    def forward(
        self, x_QD: Tensor, condition_DD: Tensor, keys_values: Sequence[KeysValues], layout: GrootLayout
    ) -> Tensor:
        """[S, width]: of the actions only."""
        for i in range(len(self.blocks)):
            x_QD = self.layer(i, x_QD, condition_DD, layout, keys_values=None if i % 2 else keys_values[i // 2])
        return x_QD

    def leave(self, x_SD: Tensor, condition_DD: Tensor, layout: GrootLayout) -> Tensor:
        """[S, head_width]: what actions are decoded from."""
        return self.out(self.norm(x_SD, self.norm.scale_shift(condition_DD), layout.draw_S))

    def condition(self, bucket_D: Tensor) -> Tensor:
        """[D, width]: what each draw's flow time tells the norms."""
        return F.silu(self.time_out(F.silu(self.time_in(condition_features(bucket_D)))))

    def layer(self, i: int, x_QD: Tensor, condition_DD: Tensor, layout: GrootLayout, **features: Any) -> Tensor:
        """Through one layer, from which on only actions may be left. features: for a layer that looks at them."""
        block, early = self.blocks[i], i < self.last_own
        draw = layout.draw_Q if early else layout.draw_S
        if i % 2 == 0:
            return block(x_QD, condition_DD, draw, layout.cross if early else layout.cross_actions, **features)
        if early:
            return block(x_QD, condition_DD, draw, layout.own)
        actions = self.rows.own(self.rows.all(x_QD, len(layout.draw_Q)).index_select(0, layout.actions_S))
        return block(actions, condition_DD, draw, layout.own_actions, among=(x_QD, layout.draw_Q))
