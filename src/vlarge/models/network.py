"""What every policy network does: read the context of a batch once, then move any number of noised chunks over it.

In training context and chunks go through the layers side by side: `enter`, `advance` from layer to layer, `leave`. So
the layers can be cut anywhere, and what passes a cut is a few tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.attention import AUTO
from vlarge.models.flow import Flow, sample_ode
from vlarge.models.rows import WHOLE, Rows

Stream = tuple[Tensor, ...]  # what passes from layer to layer, [rows, width] each


class StreamShape(NamedTuple):
    """Of one tensor of a stream. is_spread: whether its rows are divided like those of the layers (`models.rows`)."""

    num_rows: int
    width: int
    is_spread: bool = True


@dataclass(frozen=True)
class Inputs[Layout]:
    """Of one forward pass. noised_SA, time_D: as `PolicyNetwork.forward` takes them. layout: where tokens lie."""

    batch: PackedBatch
    noised_SA: Tensor
    time_D: Tensor
    layout: Layout


class PolicyNetwork[Layout, Context](nn.Module, ABC):
    """`forward` predicts flow velocities for training; `sample` denoises action chunks.

    flow: the convention of time. PARTS: beginnings of the parameters' names, by what may be frozen together.
    attention: the backend of `models.attention`. rows: see `models.rows`.
    runs_idle_parts: whether parts that a batch has no use for run all the same, on no rows. Processes that share the
    weights of a part must all pass by.
    """

    flow: ClassVar[Flow]
    PARTS: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.attention = AUTO
        self.rows: Rows = WHOLE
        self.runs_idle_parts = False

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def embed_in_order(self, ids_RN: np.ndarray) -> None:
        """Start embeddings of ids that ascend along each row alike. Nothing where prompts hold no numbers."""

    def forward(self, batch: PackedBatch, noised_SA: Tensor, time_D: Tensor, num_draws: int = 1) -> Tensor:
        """Velocities [S * num_draws, max_action_dim] in fp32.

        noised_SA: noised actions, sample-major, then draw, then step. time_D: flow time of each draw [B * num_draws].
        """
        inputs = Inputs(batch, noised_SA, time_D, self.lay_out(batch, num_draws))
        return self.leave(self.advance(self.enter(inputs), range(self.num_layers), inputs), inputs)

    @torch.no_grad()
    def sample(self, batch: PackedBatch, noise_SA: Tensor) -> Tensor:
        """Normalised action chunks [S, max_action_dim]: Euler steps over a context that is read once."""
        layout = self.lay_out(batch, 1)
        context = self.encode_context(batch, layout)

        def velocity(x_SA: Tensor, t: float) -> Tensor:
            return self.denoise(x_SA, torch.full((batch.num_samples,), t, device=self.device), context, layout)

        return sample_ode(velocity, noise_SA, self.flow, self.config.denoise_steps)

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """What `advance` counts."""

    @abstractmethod
    def enter(self, inputs: Inputs[Layout]) -> Stream:
        """What the first layer reads."""

    @abstractmethod
    def advance(self, stream: Stream, layers: range, inputs: Inputs[Layout]) -> Stream:
        """Through some of the layers."""

    @abstractmethod
    def stream_shapes(self, layout: Layout, layer: int) -> tuple[StreamShape, ...]:
        """Of the stream that layer number `layer` reads."""

    @abstractmethod
    def leave(self, stream: Stream, inputs: Inputs[Layout]) -> Tensor:
        """Velocities, from what the last layer wrote."""

    @abstractmethod
    def lay_out(self, batch: PackedBatch, num_draws: int) -> Layout:
        """Where the tokens of a batch lie, on this network's device."""

    @abstractmethod
    def encode_context(self, batch: PackedBatch, layout: Layout) -> Context:
        """What all draws of a sample look at."""

    @abstractmethod
    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: Context, layout: Layout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
