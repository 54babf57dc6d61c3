"""SmolVLA: a small vision-language model reads images, instruction and state, an expert denoises the action chunk.

Each layer of the expert reads the keys and values of the same layer of the language model, which never sees an action:
what precedes the actions, their context, is computed once however many noise draws or denoising steps follow. The state
is the language model's last token, which images and text do not see. The last layer of the language model only makes
keys and values: nothing reads its output. Paper: arXiv 2506.01844; behaviour matched: LeRobot 0.6.1.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.attention import attend
from vlarge.models.augment import batch_images
from vlarge.models.flow import PI0_FLOW, time_features
from vlarge.models.language import DecoderLayer, KeysValues, LanguageConfig
from vlarge.models.network import Inputs, PolicyNetwork, Stream, StreamShape
from vlarge.models.norm import RMSNorm
from vlarge.models.precision import full_precision
from vlarge.models.rotary import rotary_angles
from vlarge.models.smolvla.config import SmolVLAConfig
from vlarge.models.smolvla.connector import Connector
from vlarge.models.smolvla.expert import CrossLayer, ExpertLayer, JointLayer
from vlarge.models.smolvla.layout import Layout, lay_out
from vlarge.models.vision import VisionTower, vision_config

NORM_EPS = 1e-5


def language_config(c: SmolVLAConfig, width: int, mlp: int) -> LanguageConfig:
    """Of a layer of the language model or of the expert: Llama's."""
    return LanguageConfig(
        width=width,
        mlp=mlp,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        activation="silu",
        norm_eps=NORM_EPS,
        norm_offset=0.0,
    )


class SmolVLA(PolicyNetwork[Layout, list[KeysValues]]):
    """The whole policy network."""

    flow = PI0_FLOW
    PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "vision": ("vision.", "connector."),
        "language": ("embed.", "language_layers."),
        "expert": ("state_in.", "action_in.", "time_in.", "time_out.", "expert_layers.", "expert_norm.", "action_out."),
    }

    def __init__(self, config: SmolVLAConfig) -> None:
        super().__init__(config)
        c = config
        self.vision = VisionTower(vision_config(c))
        self.connector = Connector(c.vision_width, c.scale_factor, c.width)
        self.embed = nn.Embedding(c.vocab_size, c.width)
        self.state_in = nn.Linear(c.max_state_dim, c.width)
        language, last = language_config(c, c.width, c.mlp), c.depth - 1
        self.language_layers = nn.ModuleList(DecoderLayer(language, keys_only=i == last) for i in range(c.depth))
        expert = language_config(c, c.expert_width, c.expert_mlp)
        self.expert_layers = nn.ModuleList(
            JointLayer(expert) if c.is_joint(i) else CrossLayer(expert) for i in range(c.depth)
        )
        self.action_in = nn.Linear(c.max_action_dim, c.expert_width)
        self.time_in = nn.Linear(2 * c.expert_width, c.expert_width)
        self.time_out = nn.Linear(c.expert_width, c.expert_width)
        self.expert_norm = RMSNorm(c.expert_width, NORM_EPS, offset=0.0)
        self.action_out = nn.Linear(c.expert_width, c.max_action_dim)
        nn.init.normal_(self.embed.weight, std=c.width**-0.5)  # the embedding is multiplied by sqrt(width)

    def lay_out(self, batch: PackedBatch, num_draws: int) -> Layout:
        return lay_out(batch, self.config.image_tokens, num_draws, self.attention).to(self.device)

    @property
    def num_layers(self) -> int:
        return self.config.depth

    def enter(self, inputs: Inputs[Layout]) -> Stream:
        """Context and actions."""
        batch, layout = inputs.batch, inputs.layout
        x_TD = torch.cat((self.embed_prefix(batch, layout), self.embed_states(batch)))
        return self.rows.own(x_TD), self.rows.own(self.embed_actions(inputs.noised_SA, inputs.time_D, layout))

    def advance(self, stream: Stream, layers: range, inputs: Inputs[Layout]) -> Stream:
        c, layout, (x_TD, x_SD) = self.config, inputs.layout, stream
        positions_T = torch.cat((layout.positions_T, layout.positions_B))
        rotary_T, joint, cross = (
            rotary_angles(positions, c.head_dim) for positions in (positions_T, layout.positions_S, layout.steps_S)
        )
        attention = partial(attend_context, layout=layout)
        for i in layers:
            x_TD, keys_values = self.language_layers[i](x_TD, rotary_T, attention)
            expert = cast(ExpertLayer, self.expert_layers[i])
            x_SD = expert(x_SD, expert.read(keys_values, layout), joint if c.is_joint(i) else cross, layout)
        return x_TD, x_SD

    def stream_shapes(self, layout: Layout, layer: int) -> tuple[StreamShape, ...]:
        context = len(layout.positions_T) + len(layout.positions_B)
        return (
            StreamShape(context, self.config.width),
            StreamShape(len(layout.positions_S), self.config.expert_width),
        )

    def leave(self, stream: Stream, inputs: Inputs[Layout]) -> Tensor:
        return self._velocity(self.rows.all(stream[1], len(inputs.layout.positions_S)))

    def encode_context(self, batch: PackedBatch, layout: Layout) -> list[KeysValues]:
        """Keys and values of every layer that the actions see, as the expert's layers read them."""
        x_TD = torch.cat((self.embed_prefix(batch, layout), self.embed_states(batch)))
        positions_T = torch.cat((layout.positions_T, layout.positions_B))
        rotary, attention = rotary_angles(positions_T, self.config.head_dim), partial(attend_context, layout=layout)
        cache: list[KeysValues] = []
        for language, expert in zip(self.language_layers, self.expert_layers, strict=True):
            x_TD, keys_values = language(x_TD, rotary, attention)
            cache.append(cast(ExpertLayer, expert).read(keys_values, layout))
        return cache

    def embed_prefix(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """Images and instructions as tokens [T, width]."""
        c = self.config
        tokens_TD = self.embed(torch.from_numpy(batch.text_T).to(self.device))
        images = batch_images(batch, c.image_size, self.device)
        if len(images) or self.runs_idle_parts:
            image_TD = self.connector(self.vision(images, self.attention), c.image_size // c.patch)
            tokens_TD = torch.cat((image_TD.float(), tokens_TD))
        return tokens_TD.index_select(0, layout.prefix_index_T) * c.width**0.5

    def embed_states(self, batch: PackedBatch) -> Tensor:
        """States as tokens [B, width]."""
        state = torch.from_numpy(batch.state_BA)
        state = F.pad(state, (0, self.config.max_state_dim - state.shape[1]))
        return self.state_in(state.to(self.device)).float()

    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: list[KeysValues], layout: Layout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
        c = self.config
        x_SD = self.embed_actions(noised_SA, time_D, layout)
        joint, cross = (rotary_angles(positions_S, c.head_dim) for positions_S in (layout.positions_S, layout.steps_S))
        for i, (layer, keys_values) in enumerate(zip(self.expert_layers, context, strict=True)):
            x_SD = layer(x_SD, keys_values, joint if c.is_joint(i) else cross, layout)
        return self._velocity(x_SD)

    def _velocity(self, x_SD: Tensor) -> Tensor:
        y = self.expert_norm(x_SD)
        with full_precision(y.device):  # the velocity itself is always fp32
            return self.action_out(y)

    def embed_actions(self, noised_SA: Tensor, time_D: Tensor, layout: Layout) -> Tensor:
        """Noised actions and their times as tokens [S, expert_width]."""
        features = time_features(time_D, self.config.expert_width).index_select(0, layout.draw_S)
        both_SD = torch.cat((self.action_in(noised_SA).float(), features), -1)
        return self.time_out(F.silu(self.time_in(both_SD))).float()


def attend_context(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, layout: Layout) -> Tensor:
    """Prefix tokens over their own prefix, states over their prefix and themselves: rows are [prefix; states]."""
    lengths = layout.prefix.num_queries, layout.state.num_queries
    q_prefix, q_state = q_THD.split(lengths)
    k_prefix, v_prefix = (x.narrow(0, 0, lengths[0]) for x in (k_THD, v_THD))
    k_state, v_state = (x.index_select(0, layout.state_index_K) for x in (k_THD, v_THD))
    prefix = attend(q_prefix, k_prefix, v_prefix, layout.prefix)
    return torch.cat((prefix, attend(q_state, k_state, v_state, layout.state)))
