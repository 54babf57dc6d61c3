"""π0 and π0.5: a vision tower and a prefix transformer read images and prompt, an expert denoises the action chunk.

Each layer of the expert sees the keys and values of the same layer of the prefix; the prefix never sees the suffix, so
it is computed once however many noise draws or denoising steps follow. The last prefix layer only makes keys and
values: nothing reads its output. π0's state is a token of the expert's that sees no action, so it belongs to what is
computed once. Papers: arXiv 2410.24164, 2504.16054; behaviour matched: openpi and LeRobot 0.6.1 (tests/golden).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.attention import attend
from vlarge.models.augment import batch_images
from vlarge.models.flow import PI0_FLOW, time_features
from vlarge.models.language import DecoderLayer, GatedMLP, KeysValues, KeyValue, LanguageConfig, Query
from vlarge.models.layout import Layout, lay_out
from vlarge.models.moe import MixtureOfExperts
from vlarge.models.network import Inputs, PolicyNetwork, Stream, StreamShape
from vlarge.models.norm import AdaptiveRMSNorm, GatedAdaptiveRMSNorm, RMSNorm
from vlarge.models.pi0.config import Pi0Config
from vlarge.models.precision import full_precision
from vlarge.models.rotary import Rotary, rotary_angles
from vlarge.models.vision import VisionTower, vision_config

Condition = tuple[Tensor, Tensor]  # of each draw, and which draw each token belongs to


class ExpertLayer(nn.Module):
    """One layer of the action expert: its queries see the keys of what comes before the actions, and its own.

    π0.5 conditions both norms on the flow time; π0 does not.
    """

    def __init__(self, c: Pi0Config) -> None:
        super().__init__()
        self.norm1 = expert_norm(c)
        sizes = language_config(c, c.expert_width, c.expert_mlp)
        self.key_value, self.query = KeyValue(sizes), Query(sizes)
        self.mlp = MixtureOfExperts(sizes, c.num_experts, c.experts_per_token) if c.num_experts else GatedMLP(sizes)
        self.norm2 = expert_norm(c)

    def forward(
        self, x_SD: Tensor, condition: Condition | None, context: KeysValues, rotary: Rotary, layout: Layout
    ) -> Tensor:
        """Actions over the keys and values of their context: prefix, then states."""
        y, gate = self._normed(self.norm1, x_SD, condition)
        joint = _joined(context, self.key_value(y, rotary), layout.joint_index_K)
        x_SD = x_SD + gate * self.query(y, joint, rotary, partial(attend, segments=layout.suffix))
        y, gate = self._normed(self.norm2, x_SD, condition)
        return x_SD + gate * self.mlp(y)

    def read_state(
        self, x_BD: Tensor, prefix: KeysValues, rotary: Rotary, layout: Layout, last: bool
    ) -> tuple[Tensor, KeysValues]:
        """π0's state tokens over their prefixes (as they came in the last layer), and keys and values of both."""
        y = self.norm1(x_BD)
        own = self.key_value(y, rotary)
        if not last:
            joint = _joined(prefix, own, layout.state_index_K)
            x_BD = x_BD + self.query(y, joint, rotary, partial(attend, segments=layout.state))
            x_BD = x_BD + self.mlp(self.norm2(x_BD))
        return x_BD, (torch.cat((prefix[0], own[0])), torch.cat((prefix[1], own[1])))

    def _normed(self, norm: nn.Module, x_SD: Tensor, condition: Condition | None) -> tuple[Tensor, Tensor | float]:
        return (norm(x_SD), 1.0) if condition is None else norm(x_SD, *condition)


def expert_norm(c: Pi0Config) -> nn.Module:
    """A block norm of the expert."""
    return RMSNorm(c.expert_width) if c.has_state_token else GatedAdaptiveRMSNorm(c.expert_width, c.expert_width)


def _joined(before: KeysValues, own: KeysValues, index_K: Tensor) -> KeysValues:
    keys, values = (torch.cat(pair).index_select(0, index_K) for pair in zip(before, own, strict=True))
    return keys, values


def ordinal_curve(n: int, width: int) -> Tensor:
    """Sines and cosines [n, width] of n ascending values, from a quarter turn to 32 turns; rows of unit length."""
    places = torch.linspace(0, 1, n)
    return time_features(places, width, min_period=4.0, max_period=1 / 32) * (2 / width) ** 0.5


def language_config(c: Pi0Config, width: int, mlp: int) -> LanguageConfig:
    """Of a layer of the prefix or of the expert: Gemma's."""
    return LanguageConfig(width=width, mlp=mlp, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim)


class Pi0(PolicyNetwork[Layout, list[KeysValues]]):
    """The whole policy network."""

    flow = PI0_FLOW
    PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "vision": ("vision.", "projector."),
        "language": ("embed.", "prefix_layers."),
        "expert": ("state_in.", "action_in.", "time_in.", "time_out.", "expert_layers.", "expert_norm.", "action_out."),
    }

    def __init__(self, config: Pi0Config) -> None:
        super().__init__(config)
        c = config
        self.vision = VisionTower(vision_config(c))
        self.projector = nn.Linear(c.vision_width, c.width)
        self.embed = nn.Embedding(c.vocab_size, c.width)
        language, last = language_config(c, c.width, c.mlp), c.depth - 1
        self.prefix_layers = nn.ModuleList(DecoderLayer(language, keys_only=i == last) for i in range(c.depth))
        self.expert_layers = nn.ModuleList(ExpertLayer(c) for _ in range(c.depth))
        self.action_in = nn.Linear(c.max_action_dim, c.expert_width)
        self.state_in = nn.Linear(c.max_state_dim, c.expert_width) if c.has_state_token else None
        # π0 mixes the time into the actions, π0.5 makes it the condition of every norm.
        self.time_in = nn.Linear((2 if c.has_state_token else 1) * c.expert_width, c.expert_width)
        self.time_out = nn.Linear(c.expert_width, c.expert_width)
        self.expert_norm = (
            RMSNorm(c.expert_width) if c.has_state_token else AdaptiveRMSNorm(c.expert_width, c.expert_width)
        )
        self.action_out = nn.Linear(c.expert_width, c.max_action_dim)
        nn.init.normal_(self.embed.weight, std=c.width**-0.5)  # the embedding is multiplied by sqrt(width)

    @torch.no_grad()
    def embed_in_order(self, ids_RN: np.ndarray) -> None:
        """Start the embeddings of ids that ascend along each row as one smooth curve per row (see `ordinal_curve`).

        Neighbouring values then act alike from the first step on; embeddings start unrelated otherwise.
        """
        for ids_N in ids_RN:
            own_D = torch.randn(self.config.width) * self.config.width**-0.5
            curve_ND = ordinal_curve(len(ids_N), self.config.width)
            self.embed.weight[torch.from_numpy(ids_N)] = (0.8 * curve_ND + 0.6 * own_D).to(self.device)

    def lay_out(self, batch: PackedBatch, num_draws: int) -> Layout:
        layout = lay_out(
            batch.num_images_B,
            batch.num_text_B,
            batch.num_actions_B,
            self.vision.config.num_patches,
            num_draws=num_draws,
            has_state_token=self.config.has_state_token,
            attention=self.attention,
        )
        return layout.to(self.device)

    @property
    def num_layers(self) -> int:
        return self.config.depth

    def enter(self, inputs: Inputs[Layout]) -> Stream:
        """Prefix, actions, and π0's states or π0.5's conditions."""
        x_SD, condition = self.embed_actions(inputs.noised_SA, inputs.time_D, inputs.layout)
        x_TD, x_SD = self.rows.own(self.embed_prefix(inputs.batch, inputs.layout)), self.rows.own(x_SD)
        return x_TD, x_SD, condition[0] if condition else self.rows.own(self.embed_states(inputs.batch.state_BA))

    def advance(self, stream: Stream, layers: range, inputs: Inputs[Layout]) -> Stream:
        layout, head_dim = inputs.layout, self.config.head_dim
        rotary_T, rotary_B, rotary_S = (
            rotary_angles(positions, head_dim)
            for positions in (layout.positions_T, layout.positions_B, layout.positions_S)
        )
        x_TD, x_SD, other = stream
        condition = None if self.config.has_state_token else (other, layout.draw_S)
        for i in layers:
            x_TD, context = self.prefix_layers[i](x_TD, rotary_T, partial(attend, segments=layout.prefix))
            expert = cast(ExpertLayer, self.expert_layers[i])
            if condition is None:
                other, context = expert.read_state(other, context, rotary_B, layout, i == self.num_layers - 1)
            x_SD = expert(x_SD, condition, context, rotary_S, layout)
        return x_TD, x_SD, other

    def stream_shapes(self, layout: Layout, layer: int) -> tuple[StreamShape, ...]:
        c, has_states = self.config, self.config.has_state_token
        other = len(layout.positions_B) if has_states else len(layout.suffix.q_lengths)
        return (
            StreamShape(len(layout.positions_T), c.width),
            StreamShape(len(layout.positions_S), c.expert_width),
            StreamShape(other, c.expert_width, is_spread=has_states),
        )

    def leave(self, stream: Stream, inputs: Inputs[Layout]) -> Tensor:
        _, x_SD, other = stream
        condition = None if self.config.has_state_token else (other, inputs.layout.draw_S)
        return self._velocity(self.rows.all(x_SD, len(inputs.layout.positions_S)), condition)

    def encode_context(self, batch: PackedBatch, layout: Layout) -> list[KeysValues]:
        """Keys and values of every layer that the actions see: of the prefixes, then of π0's states."""
        prefix = self.encode_prefix(batch, layout)
        return prefix if self.state_in is None else self.encode_states(batch.state_BA, prefix, layout)

    def encode_states(self, state_BA: np.ndarray, prefix: list[KeysValues], layout: Layout) -> list[KeysValues]:
        """What `encode_context` gives, where there are states."""
        x_BD = self.embed_states(state_BA)
        rotary = rotary_angles(layout.positions_B, self.config.head_dim)
        cache: list[KeysValues] = []
        for layer, keys_values in zip(self.expert_layers, prefix, strict=True):
            last = len(cache) == self.config.depth - 1
            x_BD, both = cast(ExpertLayer, layer).read_state(x_BD, keys_values, rotary, layout, last)
            cache.append(both)
        return cache

    def embed_states(self, state_BA: np.ndarray) -> Tensor:
        """π0's states as tokens [B, expert_width]."""
        assert self.state_in is not None
        state = F.pad(torch.from_numpy(state_BA), (0, self.config.max_state_dim - state_BA.shape[1]))
        return self.state_in(state.to(self.device)).float()

    def encode_prefix(self, batch: PackedBatch, layout: Layout) -> list[KeysValues]:
        """Keys and values of every prefix layer."""
        x_TD, rotary = self.embed_prefix(batch, layout), rotary_angles(layout.positions_T, self.config.head_dim)
        cache: list[KeysValues] = []
        for layer in self.prefix_layers:
            x_TD, keys_values = layer(x_TD, rotary, partial(attend, segments=layout.prefix))
            cache.append(keys_values)
        return cache

    def embed_prefix(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """Images and prompts as tokens [T, width]."""
        c = self.config
        text_TD = self.embed(torch.from_numpy(batch.text_T).to(self.device)) * c.width**0.5
        images = batch_images(batch, c.image_size, self.device)
        tokens_TD = (
            torch.cat((self.projector(self.vision(images, self.attention)).float(), text_TD))
            if len(images) or self.runs_idle_parts
            else text_TD
        )
        return tokens_TD.index_select(0, layout.prefix_index_T)

    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: list[KeysValues], layout: Layout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
        x_SD, condition = self.embed_actions(noised_SA, time_D, layout)
        rotary = rotary_angles(layout.positions_S, self.config.head_dim)
        for layer, keys_values in zip(self.expert_layers, context, strict=True):
            x_SD = layer(x_SD, condition, keys_values, rotary, layout)
        return self._velocity(x_SD, condition)

    def _velocity(self, x_SD: Tensor, condition: Condition | None) -> Tensor:
        y = self.expert_norm(x_SD) if condition is None else self.expert_norm(x_SD, *condition)
        with full_precision(y.device):  # the velocity itself is always fp32
            return self.action_out(y)

    def embed_actions(self, noised_SA: Tensor, time_D: Tensor, layout: Layout) -> tuple[Tensor, Condition | None]:
        """The actions' tokens, and what the expert's norms are conditioned on."""
        x_SD, features = self.action_in(noised_SA).float(), time_features(time_D, self.config.expert_width)
        if self.state_in is None:
            return x_SD, (F.silu(self.time_out(F.silu(self.time_in(features)))), layout.draw_S)
        both_SD = torch.cat((x_SD, features[layout.draw_S]), -1)
        return self.time_out(F.silu(self.time_in(both_SD))).float(), None
