"""GR00T N1.5, packed: a backbone reads images and text once, a head denoises the action chunk over its features.

No token is padded, no image is absent, and no draw copies the features it looks at: they are one segment with all draws
of their sample. Paper: arXiv 2503.14734. Behaviour matched: Isaac-GR00T N1.5 and LeRobot 0.5.1 (tests/unit/models), but
for two things: padding is seen by nothing (see `GrootConfig.attend_padding`), and training drops nothing out.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.attention import AUTO
from vlarge.models.flow import GROOT_FLOW, sample_ode
from vlarge.models.gr00t.backbone import Backbone
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.head import Context, Head
from vlarge.models.gr00t.layout import GrootLayout, lay_out


class Groot(nn.Module):
    """The whole policy network. `forward` predicts flow velocities for training; `sample` denoises action chunks.

    PARTS: beginnings of the parameters' names, by what may be frozen together.
    """

    flow = GROOT_FLOW
    PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "vision": ("backbone.vision.", "backbone.projector."),
        "language": ("backbone.embed.", "backbone.layers.", "backbone.norm."),
        "expert": ("head.",),
    }

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = AUTO  # the backend of `models.attention`
        self.backbone = Backbone(config)
        self.head = Head(config)

    def embed_in_order(self, ids_RN: np.ndarray) -> None:
        """Nothing to do: the state is a token of its own, and no prompt holds numbers."""

    def forward(self, batch: PackedBatch, noised_SA: Tensor, time_D: Tensor, num_draws: int = 1) -> Tensor:
        """Velocities [S * num_draws, max_action_dim] in fp32.

        noised_SA: noised actions, sample-major, then draw, then step. time_D: flow time of each draw [B * num_draws].
        """
        layout = self.lay_out(batch, num_draws)
        return self.denoise(noised_SA, time_D, self.encode_context(batch, layout), layout)

    @torch.no_grad()
    def sample(self, batch: PackedBatch, noise_SA: Tensor) -> Tensor:
        """Normalised action chunks [S, max_action_dim]: Euler steps over features read once."""
        layout = self.lay_out(batch, 1)
        context = self.encode_context(batch, layout)

        def velocity(x_SA: Tensor, t: float) -> Tensor:
            return self.denoise(x_SA, torch.full((batch.num_samples,), t, device=self.device), context, layout)

        return sample_ode(velocity, noise_SA, self.flow, self.config.denoise_steps)

    def lay_out(self, batch: PackedBatch, num_draws: int) -> GrootLayout:
        return lay_out(self.config, batch, num_draws, self.attention).to(self.device)

    @property
    def device(self) -> torch.device:
        return self.backbone.embed.weight.device

    def encode_context(self, batch: PackedBatch, layout: GrootLayout) -> Context:
        """What all draws of a sample look at."""
        return self.head.read(self.backbone(batch, layout), batch.state_BA, layout)

    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: Context, layout: GrootLayout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
        return self.head.velocity(noised_SA, time_D, context, layout)
