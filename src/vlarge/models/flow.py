"""Flow matching: conventions of time, interpolation and target, keyed draws, and samplers (ODE, SDE)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Velocity = Callable[[Tensor, float], Tensor]  # of noised actions at a flow time; the shape stays


def pi0_times(uniform: np.ndarray) -> np.ndarray:
    """0.001 + 0.999 * Beta(1.5, 1), by the inverse of its distribution function (u^(1/1.5))."""
    return 0.001 + 0.999 * uniform ** (1 / 1.5)


def groot_times(uniform: np.ndarray) -> np.ndarray:
    """(0.999 - Beta(1.5, 1)) / 0.999, cut at 0."""
    return np.maximum((0.999 - uniform ** (1 / 1.5)) / 0.999, 0)


@dataclass(frozen=True)
class Flow:
    """A model's convention. noise_at: the time, 1 or 0, at which actions are noise; at the other end they are data.

    times: uniform numbers in [0, 1) to times of training. Velocities are derivatives by time.
    """

    noise_at: int
    times: Callable[[np.ndarray], np.ndarray]

    def interpolate(self, actions_SA: Tensor, noise_SA: Tensor, time_S: Tensor) -> tuple[Tensor, Tensor]:
        """The noised actions at these times, and the velocity to predict."""
        t = time_S[:, None]
        if self.noise_at == 1:
            return t * noise_SA + (1 - t) * actions_SA, noise_SA - actions_SA
        return (1 - t) * noise_SA + t * actions_SA, actions_SA - noise_SA

    def time(self, noise_level: float) -> float:
        """The time at which so much of the actions is noise."""
        return noise_level if self.noise_at == 1 else 1.0 - noise_level

    def towards_noise(self, velocity: Tensor) -> Tensor:
        """A velocity as derivative by the noise level."""
        return velocity if self.noise_at == 1 else -velocity


PI0_FLOW = Flow(noise_at=1, times=pi0_times)  # also SmolVLA's
GROOT_FLOW = Flow(noise_at=0, times=groot_times)


def keyed_draws(
    seed: int,
    sample_ids_B3: np.ndarray,
    step: int,
    lengths_B: np.ndarray,
    dim: int,
    num_draws: int = 1,
    flow: Flow = PI0_FLOW,
) -> tuple[np.ndarray, np.ndarray]:
    """Times [B * num_draws] and noise [sum of lengths * num_draws, dim], fp32 whatever a model computes in.

    They depend on (seed, sample id, step) only: not on a rank, a batch or a neighbour (DESIGN §2.7).
    """
    ends_B = num_draws * np.cumsum(lengths_B)
    uniforms = np.empty((len(ends_B), num_draws))
    noise = np.empty((num_draws * int(lengths_B.sum()), dim), np.float32)
    for b, (sample_id, length) in enumerate(zip(sample_ids_B3.tolist(), lengths_B.tolist(), strict=True)):
        rng = keyed_generator(seed, *sample_id, step)
        rng.random(out=uniforms[b])
        rng.standard_normal(out=noise[ends_B[b] - num_draws * length : ends_B[b]], dtype=np.float32)
    return flow.times(uniforms.reshape(-1)).astype(np.float32), noise


def keyed_generator(*key: int) -> np.random.Generator:
    """A generator that is a function of its key; keys may hold any integers from 0."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def sample_ode(velocity: Velocity, noise_SA: Tensor, flow: Flow, num_steps: int) -> Tensor:
    """Euler steps from noise to actions."""
    x = noise_SA
    for i in range(num_steps):
        x = x - flow.towards_noise(velocity(x, flow.time(1.0 - i / num_steps))) / num_steps
    return x


@dataclass(frozen=True)
class SdeSchedule:
    """Which of the denoising steps are random, and how much (Flow-SDE, arXiv 2510.25889).

    noise: a in sigma = a * sqrt(s / (1 - s)) at noise level s. random_steps: the others are Euler steps of the ODE.
    """

    num_steps: int
    noise: float
    random_steps: Collection[int]

    def transition(self, x_SA: Tensor, velocity_SA: Tensor, step: int) -> tuple[Tensor, float]:
        """Mean [S, A] and standard deviation of what follows x. velocity: by the noise level (`Flow.towards_noise`)."""
        level, width = 1.0 - step / self.num_steps, 1.0 / self.num_steps
        data, noise, after = x_SA - velocity_SA * level, x_SA + velocity_SA * (1 - level), level - width
        if step not in self.random_steps:
            return data * (1 - after) + noise * after, 0.0
        # At level 1 sigma has no bound: the first step takes the next level in its denominator.
        variance = self.noise**2 * level / (1 - (level if step else after))
        mean = data * (1 - after) + noise * (after - variance * width / (2 * level))
        return mean, (variance * width) ** 0.5


def sample_sde(velocity: Velocity, noise_SA: Tensor, draws_KSA: Tensor, flow: Flow, schedule: SdeSchedule) -> Tensor:
    """The whole chain [K + 1, S, A], from noise to actions. draws_KSA: standard normal, one for each step."""
    chain = [noise_SA]
    for i in range(schedule.num_steps):
        mean, std = schedule.transition(chain[-1], _towards_noise(velocity, chain[-1], flow, schedule, i), i)
        chain.append(mean + std * draws_KSA[i])
    return torch.stack(chain)


def chain_log_prob(velocity: Velocity, chain_KSA: Tensor, flow: Flow, schedule: SdeSchedule) -> Tensor:
    """Log-density [random steps, S, A] of each number that a chain drew, given what was before it.

    Sum over the executed steps and the real dimensions for the log-probability of a chunk; a step of the ODE has none.
    """
    found = []
    for i in sorted(schedule.random_steps):
        x, then = chain_KSA[i], chain_KSA[i + 1]
        mean, std = schedule.transition(x, _towards_noise(velocity, x, flow, schedule, i), i)
        found.append(torch.distributions.Normal(mean, std).log_prob(then))
    return torch.stack(found) if found else chain_KSA[:0]


def _towards_noise(velocity: Velocity, x_SA: Tensor, flow: Flow, schedule: SdeSchedule, step: int) -> Tensor:
    return flow.towards_noise(velocity(x_SA, flow.time(1.0 - step / schedule.num_steps)))


def time_features(time_B: Tensor, dim: int, min_period: float = 4e-3, max_period: float = 4.0) -> Tensor:
    """Sine and cosine features [B, dim] of flow time, log-spaced periods, angles in fp64 (openpi)."""
    fraction = torch.linspace(0.0, 1.0, dim // 2, dtype=torch.float64, device=time_B.device)
    period = min_period * (max_period / min_period) ** fraction
    angles = 2 * torch.pi * time_B.double()[:, None] / period
    return torch.cat((angles.sin(), angles.cos()), -1).float()
