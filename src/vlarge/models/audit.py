"""What a run will train, before it trains: parameters by part, those that no loss depends on, the work per sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vlarge.contracts import PackedBatch
from vlarge.models.adapt import part_of
from vlarge.models.division import Division
from vlarge.models.flow import keyed_draws
from vlarge.models.network import PolicyNetwork

MOST_NAMES = 6


@dataclass(frozen=True)
class Audit:
    """trainable, frozen: numbers of parameters by part. dead: names of what would be trained and gets no gradient:
    it is left as it is.

    forward_flops: of one sample. flops: of the matrix products of each module in a forward pass, by its name.
    """

    trainable: dict[str, int]
    frozen: dict[str, int]
    dead: tuple[str, ...]
    forward_flops: float
    flops: dict[str, int] = field(default_factory=dict, compare=False)

    def layer_costs(self, division: Division) -> tuple[float, ...]:
        """As `Division.costs`: the work of entering, and of each layer."""
        costs = [0.0] * (1 + division.num_layers)
        for stack in division.stacks:
            for name, flops in self.flops.items():
                head, _, number = name.rpartition(".")
                if head == stack.name:
                    costs[0 if stack.first is None else 1 + stack.first + int(number)] += flops
        return tuple(costs)

    def lines(self) -> list[str]:
        """For people."""
        kinds = list(dict.fromkeys(re.sub(r"\.\d+\.", ".#.", name) for name in self.dead))
        more = f" and {len(kinds) - MOST_NAMES} kinds more" if len(kinds) > MOST_NAMES else ""
        return [
            f"trainable  {_counts(self.trainable)}",
            f"frozen     {_counts(self.frozen)}",
            f"dead       {', '.join(kinds[:MOST_NAMES]) or 'none'}{more}",
            f"work       {_engineering(self.forward_flops)}FLOP forward per sample",
        ]


def audit(model: PolicyNetwork[Any, Any], batch: PackedBatch, forward_flops: float, num_draws: int) -> Audit:
    """Of a model on torch's meta device, which computes no number: what a batch like this one makes it learn."""
    with FlopCounterMode(display=False) as counter:
        velocity = _velocity(model, batch, num_draws)
    dead = _without_gradient(model, velocity)
    root = type(model).__name__ + "."
    flops = {name.removeprefix(root): sum(each.values()) for name, each in counter.get_flop_counts().items()}
    parts = model.PARTS
    trainable, frozen = dict.fromkeys(parts, 0), dict.fromkeys(parts, 0)
    for name, parameter in model.named_parameters():
        counts = trainable if parameter.requires_grad and name not in dead else frozen
        counts[part_of(name, parts)] += parameter.numel()
    return Audit(trainable, frozen, tuple(dead), forward_flops / batch.num_samples, flops)


def _velocity(model: PolicyNetwork[Any, Any], batch: PackedBatch, num_draws: int) -> Tensor:
    dim = model.config.max_action_dim
    times, noise = keyed_draws(0, batch.sample_ids_B3, 0, batch.num_actions_B, dim, num_draws, model.flow)
    noised, time_D = (torch.from_numpy(x).to(model.device) for x in (noise, times))
    return model(batch, noised, time_D, num_draws)


def _without_gradient(model: PolicyNetwork[Any, Any], velocity: Tensor) -> Sequence[str]:
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not velocity.requires_grad:
        return list(wanted)
    found = torch.autograd.grad(velocity.sum(), list(wanted.values()), allow_unused=True)
    return [name for name, gradient in zip(wanted, found, strict=True) if gradient is None]


def _counts(by_part: dict[str, int]) -> str:
    total = sum(by_part.values())
    if not total:
        return "none"
    parts = ", ".join(f"{name} {_engineering(count).rstrip()}" for name, count in by_part.items() if count)
    return f"{_engineering(total).rstrip()}: {parts}"


def _engineering(number: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "
