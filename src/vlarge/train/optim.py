"""AdamW with decay on matrices only, a warm-up and cosine schedule, and a guarded update."""

from __future__ import annotations

import math

import torch
from torch import nn

from vlarge.models.adapt import by_decay
from vlarge.train.config import TrainConfig


def build_optimizer(model: nn.Module, c: TrainConfig) -> torch.optim.AdamW:
    """AdamW; `by_decay` says on what weight decay falls."""
    decayed, others = by_decay(model)
    groups = [{"params": decayed, "weight_decay": c.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=c.lr, betas=c.betas, fused=True)


def learning_rate(step: int, c: TrainConfig) -> float:
    """Linear warm-up from the first update on, then a cosine to lr_min at the last. Steps count from 0."""
    warmup = min(c.warmup_steps, c.steps)
    if step < warmup:
        return c.lr * (step + 1) / warmup
    progress = (step - warmup) / max(c.steps - 1 - warmup, 1)
    return c.lr_min + (c.lr - c.lr_min) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def update(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, clip_norm: float) -> float:
    """Clip, step, clear. Returns the gradient norm; when it is not finite the weights stay as they are."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm).item()
    if math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    optimizer.zero_grad()
    return norm
