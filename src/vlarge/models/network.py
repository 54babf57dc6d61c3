"""What every policy network does: read the context of a batch once, then move any number of noised chunks over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.attention import AUTO
from vlarge.models.flow import Flow, sample_ode


class PolicyNetwork[Layout, Context](nn.Module, ABC):
    """`forward` predicts flow velocities for training; `sample` denoises action chunks.

    flow: the convention of time. PARTS: beginnings of the parameters' names, by what may be frozen together.
    attention: the backend of `models.attention`.
    """

    flow: ClassVar[Flow]
    PARTS: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.attention = AUTO

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def embed_in_order(self, ids_RN: np.ndarray) -> None:
        """Start embeddings of ids that ascend along each row alike. Nothing where prompts hold no numbers."""

    def forward(self, batch: PackedBatch, noised_SA: Tensor, time_D: Tensor, num_draws: int = 1) -> Tensor:
        """Velocities [S * num_draws, max_action_dim] in fp32.

        noised_SA: noised actions, sample-major, then draw, then step. time_D: flow time of each draw [B * num_draws].
        """
        layout = self.lay_out(batch, num_draws)
        return self.denoise(noised_SA, time_D, self.encode_context(batch, layout), layout)

    @torch.no_grad()
    def sample(self, batch: PackedBatch, noise_SA: Tensor) -> Tensor:
        """Normalised action chunks [S, max_action_dim]: Euler steps over a context that is read once."""
        layout = self.lay_out(batch, 1)
        context = self.encode_context(batch, layout)

        def velocity(x_SA: Tensor, t: float) -> Tensor:
            return self.denoise(x_SA, torch.full((batch.num_samples,), t, device=self.device), context, layout)

        return sample_ode(velocity, noise_SA, self.flow, self.config.denoise_steps)

    @abstractmethod
    def lay_out(self, batch: PackedBatch, num_draws: int) -> Layout:
        """Where the tokens of a batch lie, on this network's device."""

    @abstractmethod
    def encode_context(self, batch: PackedBatch, layout: Layout) -> Context:
        """What all draws of a sample look at."""

    @abstractmethod
    def denoise(self, noised_SA: Tensor, time_D: Tensor, context: Context, layout: Layout) -> Tensor:
        """Velocities of noised actions over a cached context, at the flow time of each draw."""
