"""Time laws, interpolation and samplers in both conventions; a chain's log-probability is that of its draws."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest
from torch import Tensor

from vlarge.models.flow import (
    GROOT_FLOW,
    PI0_FLOW,
    Flow,
    SdeSchedule,
    chain_log_prob,
    keyed_draws,
    sample_ode,
    sample_sde,
)

FLOWS = pytest.mark.parametrize("flow", [PI0_FLOW, GROOT_FLOW], ids=["pi0", "groot"])
TARGET_MEAN, TARGET_STD = 1.5, 0.3


def exact_velocity(flow: Flow):
    """Of the flow between standard normal noise and a normal distribution of data: what a perfect model predicts."""

    def velocity(x: Tensor, time: float) -> Tensor:
        level = time if flow.noise_at == 1 else 1 - time
        variance = (1 - level) ** 2 * TARGET_STD**2 + level**2
        centred = x - (1 - level) * TARGET_MEAN
        data = TARGET_MEAN + (1 - level) * TARGET_STD**2 / variance * centred
        noise = level / variance * centred
        return flow.towards_noise(noise - data)

    return velocity


def test_times_follow_their_laws() -> None:
    uniform = (np.arange(20_000) + 0.5) / 20_000
    pi0, groot = PI0_FLOW.times(uniform), GROOT_FLOW.times(uniform)
    assert kstest((pi0 - 0.001) / 0.999, beta(1.5, 1).cdf).statistic < 1e-3
    assert kstest(0.999 * (1 - groot), beta(1.5, 1).cdf).statistic < 2e-3
    assert ((pi0 > 0) & (pi0 <= 1)).all()
    assert ((groot >= 0) & (groot < 1.0011)).all()


def test_a_million_times_are_finite_and_in_range() -> None:
    """Drawn in bf16, such times are 0 / 0 now and then (lerobot#1096)."""
    times, noise = keyed_draws(0, np.zeros((1, 3), np.int64), 0, np.array([0]), 2, num_draws=1_000_000)
    assert times.dtype == noise.dtype == np.float32
    assert ((times >= 0.001) & (times <= 1)).all()


@FLOWS
def test_velocity_is_the_derivative_of_the_interpolation(flow: Flow) -> None:
    actions, noise = torch.randn(2, 5, 3, dtype=torch.float64)
    time = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    noised, velocity = flow.interpolate(actions, noise, time)
    later, _ = flow.interpolate(actions, noise, time + 1e-6)
    torch.testing.assert_close((later - noised) / 1e-6, velocity, rtol=1e-6, atol=1e-6)
    at_noise, _ = flow.interpolate(actions, noise, torch.full((5,), float(flow.noise_at)))
    torch.testing.assert_close(at_noise, noise)


@FLOWS
def test_samplers_reach_the_data(flow: Flow) -> None:
    torch.manual_seed(0)
    velocity, noise, steps = exact_velocity(flow), torch.randn(40_000, 1), 50
    ode = sample_ode(velocity, noise, flow, steps)
    schedule = SdeSchedule(steps, 0.5, range(steps))
    chain = sample_sde(velocity, noise, torch.randn(steps, *noise.shape), flow, schedule)
    for actions in (ode, chain[-1]):
        assert actions.mean().item() == pytest.approx(TARGET_MEAN, abs=0.01)
        assert actions.std().item() == pytest.approx(TARGET_STD, abs=0.015)
    assert not torch.allclose(ode, chain[-1], atol=0.1)


@FLOWS
def test_without_random_steps_the_chain_is_the_ode(flow: Flow) -> None:
    velocity, noise = exact_velocity(flow), torch.randn(6, 2)
    chain = sample_sde(velocity, noise, torch.randn(10, 6, 2), flow, SdeSchedule(10, 0.5, ()))
    torch.testing.assert_close(chain[-1], sample_ode(velocity, noise, flow, 10))
    assert chain_log_prob(velocity, chain, flow, SdeSchedule(10, 0.5, ())).shape == (0, 6, 2)


@FLOWS
@pytest.mark.parametrize("random_steps", [range(4), (2,), (0, 3)])
def test_log_probability_is_that_of_the_draws(flow: Flow, random_steps: range | tuple[int, ...]) -> None:
    """By change of variables: the density of a standard normal draw, over the step's spread."""
    velocity, noise, draws = exact_velocity(flow), torch.randn(6, 2), torch.randn(4, 6, 2)
    schedule = SdeSchedule(4, 0.7, random_steps)
    chain = sample_sde(velocity, noise, draws, flow, schedule)
    found = chain_log_prob(velocity, chain, flow, schedule)
    assert len(found) == len(random_steps)
    for step, log_prob in zip(random_steps, found, strict=True):
        spread = schedule.transition(chain[step], torch.zeros_like(noise), step)[1]
        assert spread > 0
        expected = torch.distributions.Normal(0, 1).log_prob(draws[step]) - np.log(spread)
        torch.testing.assert_close(log_prob, expected, rtol=1e-3, atol=1e-3)


def test_spread_of_each_step_is_flow_sdes() -> None:
    """sigma = a sqrt(t / (1 - t)), the first with the next step's time below it (facts of the paper's code)."""
    schedule = SdeSchedule(4, 0.5, range(4))
    zero = torch.zeros(1, 1)
    spreads = [schedule.transition(zero, zero, step)[1] for step in range(4)]
    times = [1.0, 0.75, 0.5, 0.25]
    below = [0.25, 0.25, 0.5, 0.75]
    assert spreads == pytest.approx([0.5 * (t / b) ** 0.5 * 0.25**0.5 for t, b in zip(times, below, strict=True)])
