"""GR00T's action head: features, the robot's state and noised actions in, flow velocities out.

Robots differ in the layers that read their states and actions and that write their actions; all else is shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.denoiser import Denoiser, action_features, bucket
from vlarge.models.gr00t.embodiment import ActionEncoder, EmbodimentMLP
from vlarge.models.gr00t.layout import GrootLayout
from vlarge.models.gr00t.transformer import NORM_EPS, FeatureBlock
from vlarge.models.language import KeysValues
from vlarge.models.norm import LayerNorm
from vlarge.models.rows import WHOLE


@dataclass(frozen=True)
class Context:
    """What is computed once for each sample, however many draws or denoising steps follow.

    states_BD: the states' tokens. keys_values: of the features, for each layer of the denoiser that looks at them.
    """

    states_BD: Tensor
    keys_values: list[KeysValues]


class Head(nn.Module):
    """The released model drops activations out in training. Here nothing is: a step is a function of its batch."""

    def __init__(self, c: GrootConfig) -> None:
        super().__init__()
        self.config = c
        width, robots = c.dit_width, c.num_embodiments
        self.norm = LayerNorm(c.width, eps=NORM_EPS)
        self.blocks = nn.ModuleList(FeatureBlock(c.width, c.vl_heads) for _ in range(c.vl_depth))
        self.state_encoder = EmbodimentMLP(robots, c.max_state_dim, c.head_width, width)
        self.action_encoder = ActionEncoder(robots, c.max_action_dim, width)
        self.action_decoder = EmbodimentMLP(robots, c.head_width, c.head_width, c.max_action_dim)
        self.future = nn.Parameter(0.02 * torch.randn(c.future_tokens, width))
        self.positions = nn.Parameter(0.02 * torch.randn(c.action_horizon, width))
        self.denoiser = Denoiser(c)
        self.rows = WHOLE

    def read(self, features_VD: Tensor, state_BA: np.ndarray, layout: GrootLayout) -> Context:
        """From the backbone's features and the states."""
        x_VD = self.advance(self.norm(features_VD), range(len(self.blocks)), layout)
        return Context(self.states(state_BA, layout), self.denoiser.keys_values(x_VD))

    def advance(self, x_VD: Tensor, layers: range, layout: GrootLayout) -> Tensor:
        """Through some of the blocks over the features."""
        for i in layers:
            x_VD = self.blocks[i](x_VD, layout.features)
        return x_VD

    def states(self, state_BA: np.ndarray, layout: GrootLayout) -> Tensor:
        """[B, dit_width] from states, whose columns may be fewer than the model takes."""
        state = torch.from_numpy(np.pad(state_BA, ((0, 0), (0, self.config.max_state_dim - state_BA.shape[1]))))
        return self.state_encoder(state.to(self.future.device), layout.states)

    def forward(
        self, noised_SA: Tensor, time_D: Tensor, states_BD: Tensor, layout: GrootLayout
    ) -> tuple[Tensor, Tensor]:
        """[Q, dit_width]: the tokens of all draws, and [D, dit_width]: what their flow times tell the norms."""
        bucket_D = bucket(time_D, self.config.time_buckets)
        time_SD = action_features(bucket_D, self.config.dit_width).index_select(0, layout.draw_S)
        actions_SD = self.action_encoder(noised_SA, time_SD, layout.actions)
        actions_SD = actions_SD + self.positions.index_select(0, layout.step_S)
        x_QD = torch.cat((states_BD, self.future, actions_SD)).index_select(0, layout.draw_index_Q)
        return x_QD, self.denoiser.condition(bucket_D)

    def velocity(self, noised_SA: Tensor, time_D: Tensor, context: Context, layout: GrootLayout) -> Tensor:
        """fp32 [S, max_action_dim], at the flow time of each draw."""
        x_QD, condition_DD = self(noised_SA, time_D, context.states_BD, layout)
        x_SD = self.denoiser(x_QD, condition_DD, context.keys_values, layout)
        return self.decode(x_SD, condition_DD, layout)

    def decode(self, x_SD: Tensor, condition_DD: Tensor, layout: GrootLayout) -> Tensor:
        """Velocities from what the denoiser's last layer wrote."""
        return self.action_decoder(self.denoiser.leave(x_SD, condition_DD, layout), layout.actions)
