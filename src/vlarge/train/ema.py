"""Exponential moving average of the weights: what is evaluated and published."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vlarge.train.parallel.weights import as_part_of, local


class Ema:
    """Averages follow the weights closely at first: the decay of update n is min(decay, (1 + n) / (10 + n)).

    Only what is trained has one, of which each process keeps what it has of the weight.
    """

    def __init__(self, networks: Sequence[nn.Module], decay: float) -> None:
        self.decay = decay
        self._trained = {
            name: parameter
            for network in networks
            for name, parameter in network.named_parameters()
            if parameter.requires_grad
        }
        self._averages = {name: local(parameter.detach()).clone() for name, parameter in self._trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimizer step number `step` (from 0)."""
        weight = weight_of_new(self.decay, step)
        now = [local(parameter) for parameter in self._trained.values()]
        torch._foreach_lerp_(list(self._averages.values()), now, weight)

    def state(self) -> dict[str, Tensor]:
        """By parameter, divided like it."""
        return {name: as_part_of(self._averages[name], parameter) for name, parameter in self._trained.items()}


def weight_of_new(decay: float, step: int) -> float:
    """How much of the weights after optimizer step number `step` (from 0) the average takes up."""
    return 1.0 - min(decay, (1 + step) / (10 + step))
