"""Flow matching: time law, interpolation, target, and the ODE sampler (π0's convention: t=1 is noise, t=0 is data)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def keyed_draws(
    seed: int, sample_ids_B3: np.ndarray, step: int, lengths_B: np.ndarray, dim: int, num_draws: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Times [B * num_draws] in (0, 1) and noise [sum of lengths * num_draws, dim], fp32.

    They depend on (seed, sample id, step) only: not on a rank, a batch or a neighbour (DESIGN §2.7).
    """
    times, noises = [], []
    for sample_id, length in zip(sample_ids_B3, lengths_B, strict=True):
        rng = keyed_generator(seed, *(int(i) for i in sample_id), step)
        times.append(beta_times(rng.random(num_draws)))
        noises.append(rng.standard_normal((num_draws * int(length), dim), dtype=np.float32))
    empty = np.zeros((0, dim), np.float32)
    return np.concatenate([*times, empty[:, 0]]).astype(np.float32), np.concatenate([*noises, empty])


def keyed_generator(*key: int) -> np.random.Generator:
    """A generator that is a function of its key; keys may hold any integers from 0."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def beta_times(uniform: np.ndarray) -> np.ndarray:
    """π0's time law 0.001 + 0.999 * Beta(1.5, 1), by its inverse distribution function (u^(1/1.5))."""
    return 0.001 + 0.999 * uniform ** (1 / 1.5)


def interpolate(actions_SA: Tensor, noise_SA: Tensor, time_S: Tensor) -> tuple[Tensor, Tensor]:
    """The noised actions x_t = t * noise + (1 - t) * actions, and the velocity noise - actions to predict."""
    t = time_S[:, None]
    return t * noise_SA + (1 - t) * actions_SA, noise_SA - actions_SA


def sample_ode(velocity: Callable[[Tensor, float], Tensor], noise: Tensor, num_steps: int = 10) -> Tensor:
    """Euler steps from t=1 to t=0; `velocity(x, t)` has the shape of x."""
    x = noise
    for i in range(num_steps):
        x = x - velocity(x, 1.0 - i / num_steps) / num_steps
    return x


def time_features(time_B: Tensor, dim: int, min_period: float = 4e-3, max_period: float = 4.0) -> Tensor:
    """Sine and cosine features [B, dim] of flow time, log-spaced periods, angles in fp64 (openpi)."""
    fraction = torch.linspace(0.0, 1.0, dim // 2, dtype=torch.float64, device=time_B.device)
    period = min_period * (max_period / min_period) ** fraction
    angles = 2 * torch.pi * time_B.double()[:, None] / period
    return torch.cat((angles.sin(), angles.cos()), -1).float()
