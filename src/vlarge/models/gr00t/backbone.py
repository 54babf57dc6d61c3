"""GR00T's eyes and reader: a SigLIP tower, and the lower layers of Qwen3 over text with image tokens in it.

What the head reads is the normalised output of the last layer, of every token: there are no logits, no further layers
and no pooled image. Behaviour matched: Eagle 2.5 as in Isaac-GR00T N1.5 and LeRobot 0.5.1 (tests/unit/models).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.attention import attend
from vlarge.models.augment import batch_images
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.layout import GrootLayout
from vlarge.models.language import DecoderLayer, LanguageConfig
from vlarge.models.rotary import rotary_angles
from vlarge.models.vision import VisionTower, vision_config

ROTARY_BASE = 1_000_000.0


def language_config(c: GrootConfig) -> LanguageConfig:
    """Qwen3's."""
    return LanguageConfig(
        width=c.width,
        mlp=c.mlp,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        activation="silu",
        norm_eps=1e-6,
        norm_offset=0.0,
        norms_heads=True,
    )


class Backbone(nn.Module):
    """Images and text to features."""

    def __init__(self, c: GrootConfig) -> None:
        super().__init__()
        self.config = c
        self.vision = VisionTower(vision_config(c))
        self.projector = nn.Linear(c.vision_width, c.width)
        self.embed = nn.Embedding(c.vocab_size, c.width)
        language = language_config(c)
        self.layers = nn.ModuleList(DecoderLayer(language) for _ in range(c.depth))
        self.norm = language.norm(c.width)
        self.runs_idle_parts = False

    def forward(self, batch: PackedBatch, layout: GrootLayout) -> Tensor:
        """fp32 [V, width]: the features that the head sees, sample after sample."""
        return self.features(self.advance(self.tokens(batch, layout), range(len(self.layers)), layout), layout)

    def advance(self, x_TD: Tensor, layers: range, layout: GrootLayout) -> Tensor:
        """Through some of the layers."""
        rotary = rotary_angles(layout.positions_T, self.config.head_dim, ROTARY_BASE)
        for i in layers:
            x_TD, _ = self.layers[i](x_TD, rotary, partial(attend, segments=layout.text))
        return x_TD

    def features(self, x_TD: Tensor, layout: GrootLayout) -> Tensor:
        """From what the last layer wrote."""
        features_TD = self.norm(x_TD)
        if layout.filled_index_V is None:
            return features_TD
        return torch.cat((features_TD, self.pad_feature())).index_select(0, layout.filled_index_V)

    def tokens(self, batch: PackedBatch, layout: GrootLayout) -> Tensor:
        """Image and text tokens, as the first layer reads them."""
        words = batch.text_T[batch.text_T != self.config.image_token]
        text_TD = self.embed(torch.from_numpy(words).to(layout.text_index_T.device))
        images = batch_images(batch, self.config.image_size, text_TD.device)
        if len(images) or self.runs_idle_parts:
            seen_TD = self.projector(self.vision(images, layout.text.backend)).float()
            text_TD = torch.cat((seen_TD, text_TD))
        return text_TD.index_select(0, layout.text_index_T)

    def pad_feature(self) -> Tensor:
        """[1, width]: of a pad in the released code, where attention gives zeros for what is masked out as a query."""
        x_TD = self.embed(torch.tensor([self.config.pad_token], device=self.embed.weight.device))
        rotary = rotary_angles(torch.zeros(1, device=x_TD.device), self.config.head_dim, ROTARY_BASE)
        for layer in self.layers:
            x_TD, _ = layer(x_TD, rotary, lambda q, _k, _v: torch.zeros_like(q))
        return self.norm(x_TD)
