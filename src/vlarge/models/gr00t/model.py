"""GR00T N1.5, packed: a backbone reads images and text once, a head denoises the action chunk over its features.

No token is padded, no image is absent, and no draw copies the features it looks at: they are one segment with all draws
of their sample. Paper: arXiv 2503.14734. Behaviour matched: Isaac-GR00T N1.5 and LeRobot 0.5.1 (tests/unit/models), but
for two things: padding is seen by nothing (see `GrootConfig.attend_padding`), and training drops nothing out.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.flow import GROOT_FLOW
from vlarge.models.gr00t.backbone import Backbone
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.head import Context, Head
from vlarge.models.gr00t.layout import GrootLayout, lay_out
from vlarge.models.network import PolicyNetwork


class Groot(PolicyNetwork[GrootLayout, Context]):
    """The whole policy network."""

    flow = GROOT_FLOW
    PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "vision": ("backbone.vision.", "backbone.projector."),
        "language": ("backbone.embed.", "backbone.layers.", "backbone.norm."),
        "expert": ("head.",),
    }

    def __init__(self, config: GrootConfig) -> None:
        super().__init__(config)
        self.backbone = Backbone(config)
        self.head = Head(config)

    def lay_out(self, batch: PackedBatch, num_draws: int) -> GrootLayout:
        return lay_out(self.config, batch, num_draws, self.attention).to(self.device)

    def encode_context(self, batch: PackedBatch, layout: GrootLayout) -> Context:
        """What all draws of a sample look at."""
        return self.head.read(self.backbone(batch, layout), batch.state_BA, layout)

    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: Context, layout: GrootLayout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
        return self.head.velocity(noised_SA, time_D, context, layout)
