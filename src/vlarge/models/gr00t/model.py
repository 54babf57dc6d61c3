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
from vlarge.models.network import Inputs, PolicyNetwork, Stream, StreamShape


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
        self.first_block = config.depth  # of the head, as `advance` counts
        self.first_denoiser = config.depth + config.vl_depth

    def lay_out(self, batch: PackedBatch, num_draws: int) -> GrootLayout:
        return lay_out(self.config, batch, num_draws, self.attention).to(self.device)

    @property
    def num_layers(self) -> int:
        return self.first_denoiser + self.config.dit_depth

    def enter(self, inputs: Inputs[GrootLayout]) -> Stream:
        return (self.rows.own(self.backbone.tokens(inputs.batch, inputs.layout)),)

    def advance(self, stream: Stream, layers: range, inputs: Inputs[GrootLayout]) -> Stream:
        """Tokens become features, and draws join them before the first layer of the denoiser."""
        layout, first, second = inputs.layout, self.first_block, self.first_denoiser
        if any(i < second for i in layers):
            (x_TD,) = stream
            x_TD = self.backbone.advance(x_TD, _between(layers, 0, first), layout)
            if first in layers:
                x_TD = self.head.norm(self.backbone.features(x_TD, layout))
            stream = (self.head.advance(x_TD, _between(layers, first, second), layout),)
        if second in layers:
            states_BD = self.head.states(inputs.batch.state_BA, layout)
            x_QD, condition_DD = self.head(inputs.noised_SA, inputs.time_D, states_BD, layout)
            stream = *stream, self.rows.own(x_QD), condition_DD
        if denoising := _between(layers, second, self.num_layers):
            stream = self._denoise(stream, denoising, layout)
        return stream

    def _denoise(self, stream: Stream, layers: range, layout: GrootLayout) -> Stream:
        x_VD, x_QD, condition_DD = stream
        features_VD = self.rows.projected(x_VD, layout.features.num_queries)
        for i in layers:
            seen = {} if i % 2 else {"features_VD": features_VD}
            x_QD = self.head.denoiser.layer(i, x_QD, condition_DD, layout, **seen)
        return x_VD, x_QD, condition_DD

    def stream_shapes(self, layout: GrootLayout, layer: int) -> tuple[StreamShape, ...]:
        c, num_conditions = self.config, len(layout.own.q_lengths)
        if layer <= self.first_denoiser:
            return (StreamShape(len(layout.positions_T), c.width),)
        tokens = layout.draw_Q if layer <= self.first_denoiser + c.last_own_layer else layout.draw_S
        return (
            StreamShape(layout.features.num_queries, c.width),
            StreamShape(len(tokens), c.dit_width),
            StreamShape(num_conditions, c.dit_width, is_spread=False),
        )

    def leave(self, stream: Stream, inputs: Inputs[GrootLayout]) -> Tensor:
        _, x_SD, condition_DD = stream
        return self.head.decode(self.rows.all(x_SD, len(inputs.layout.draw_S)), condition_DD, inputs.layout)

    def encode_context(self, batch: PackedBatch, layout: GrootLayout) -> Context:
        """What all draws of a sample look at."""
        return self.head.read(self.backbone(batch, layout), batch.state_BA, layout)

    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: Context, layout: GrootLayout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
        return self.head.velocity(noised_SA, time_D, context, layout)


def _between(layers: range, first: int, end: int) -> range:
    # Those of the layers from `first` to before `end`, counted from `first`.
    return range(max(layers.start, first) - first, max(min(layers.stop, end), first) - first)
