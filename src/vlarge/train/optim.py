"""AdamW with decay on matrices only, a warm-up and cosine schedule, and a guarded update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vlarge.models.adapt import by_decay
from vlarge.train.config import TrainConfig
from vlarge.train.parallel.weights import as_part_of, local

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW on what this process has of each trained parameter; `by_decay` says on what weight decay falls.

    It works value by value, so a part of a parameter is updated like any tensor, however the rest is divided.
    """

    def __init__(self, networks: Sequence[nn.Module], c: TrainConfig) -> None:
        self._trained = {
            name: parameter
            for network in networks
            for name, parameter in network.named_parameters()
            if parameter.requires_grad
        }
        self._shards = {parameter: nn.Parameter(local(parameter.detach())) for parameter in self._trained.values()}
        groups: list[dict[str, Any]] = []
        for network in networks:
            for parameters, decay in zip(by_decay(network), (c.weight_decay, 0.0), strict=True):
                groups.append({"params": [self._shards[p] for p in parameters], "weight_decay": decay})
        self._adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=c.lr, betas=c.betas, fused=True)

    def update(self, lr: float, clip_norm: float, norm: Tensor) -> None:
        """Clip, step, clear. norm: of the whole gradient; when it is not finite the weights stay as they are.

        The device decides that by itself: the host does not wait for the norm.
        """
        factor = torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
        for parameter, shard in self._shards.items():
            shard.grad = None if parameter.grad is None else local(parameter.grad)
        torch._foreach_mul_([s.grad for s in self._shards.values() if s.grad is not None], factor)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]  # as a GradScaler tells it
        self._adamw.step()
        for parameter, shard in self._shards.items():
            parameter.grad = shard.grad = None

    def state(self) -> dict[str, dict[str, Tensor]]:
        """By parameter: moments, each divided like it, and how many steps they are of."""
        return {name: self._state_of(parameter) for name, parameter in self._trained.items()}

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        own = self._own(parameter)
        return {"step": own["step"], **{moment: as_part_of(own[moment], parameter) for moment in MOMENTS}}

    def _own(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        # AdamW makes it with the first update; a checkpoint may come, or be loaded, before.
        shard = self._shards[parameter]
        if not self._adamw.state[shard]:
            self._adamw.state[shard] = {"step": torch.zeros((), dtype=torch.float32, device=shard.device)}
            self._adamw.state[shard] |= {moment: torch.zeros_like(shard) for moment in MOMENTS}
        return self._adamw.state[shard]


def learning_rate(step: int, c: TrainConfig) -> float:
    """Linear warm-up from the first update on, then a cosine to lr_min at the last. Steps count from 0."""
    warmup = min(c.warmup_steps, c.steps)
    if step < warmup:
        return c.lr * (step + 1) / warmup
    progress = (step - warmup) / max(c.steps - 1 - warmup, 1)
    return c.lr_min + (c.lr - c.lr_min) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
