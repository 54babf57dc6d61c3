"""What a run will train, before it trains: parameters by part, those that no loss depends on, the work per sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlarge.contracts import PackedBatch
from vlarge.models.adapt import part_of
from vlarge.models.flow import keyed_draws
from vlarge.models.network import PolicyNetwork

MOST_NAMES = 6


@dataclass(frozen=True)
class Audit:
    """trainable, frozen: numbers of parameters by part. dead: names of what would be trained and gets no gradient:
    it is left as it is.

    forward_flops: of one sample.
    """

    trainable: dict[str, int]
    frozen: dict[str, int]
    dead: tuple[str, ...]
    forward_flops: float

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
    dead = _without_gradient(model, batch, num_draws)
    parts = model.PARTS
    trainable, frozen = dict.fromkeys(parts, 0), dict.fromkeys(parts, 0)
    for name, parameter in model.named_parameters():
        counts = trainable if parameter.requires_grad and name not in dead else frozen
        counts[part_of(name, parts)] += parameter.numel()
    return Audit(trainable, frozen, tuple(dead), forward_flops / batch.num_samples)


def _without_gradient(model: PolicyNetwork[Any, Any], batch: PackedBatch, num_draws: int) -> Sequence[str]:
    dim = model.config.max_action_dim
    times, noise = keyed_draws(0, batch.sample_ids_B3, 0, batch.num_actions_B, dim, num_draws, model.flow)
    noised, time_D = (torch.from_numpy(x).to(model.device) for x in (noise, times))
    velocity = model(batch, noised, time_D, num_draws)
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
