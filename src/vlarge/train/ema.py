"""Exponential moving average of the weights: what is evaluated and published."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ema:
    """Averages follow the weights closely at first: the decay of update n is min(decay, (1 + n) / (10 + n)).

    `state` holds all weights: of what is frozen, the model's own. `averages` are those of `state` that it keeps itself.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.state = {name: value.clone() if name in trained else value for name, value in model.state_dict().items()}
        self.averages = {name: value for name, value in self.state.items() if name in trained}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """After optimizer step number `step` (from 0)."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        now = model.state_dict()
        torch._foreach_lerp_(list(self.averages.values()), [now[name] for name in self.averages], weight)

    def load(self, state: dict[str, Tensor]) -> None:
        for name, value in self.averages.items():
            value.copy_(state[name])
