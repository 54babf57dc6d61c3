"""Intervals for success rates and exact tests for paired outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from vlarge.contracts import InputError


def wilson(num_success: int, num_episodes: int, alpha: float = 0.05) -> tuple[float, float]:
    """Wilson score interval with coverage 1 - alpha (E. B. Wilson, 1927): for display. (0, 1) without episodes."""
    _check_counts(num_success, num_episodes, alpha)
    if num_episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1 - alpha / 2)
    rate = num_success / num_episodes
    shrink = 1 + z * z / num_episodes
    centre = (rate + z * z / (2 * num_episodes)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / num_episodes + z * z / (4 * num_episodes**2))
    low = 0.0 if num_success == 0 else centre - half
    high = 1.0 if num_success == num_episodes else centre + half
    return low, high


def clopper_pearson(num_success: int, num_episodes: int, alpha: float = 0.05) -> tuple[float, float]:
    """Exact interval (Clopper and Pearson, 1934): its coverage is at least 1 - alpha, so it suits guarantees."""
    _check_counts(num_success, num_episodes, alpha)
    low, high = 0.0, 1.0
    if num_success > 0:
        low = _rate_with_tail(num_success, num_episodes, alpha / 2)
    if num_success < num_episodes:
        high = 1 - _rate_with_tail(num_episodes - num_success, num_episodes, alpha / 2)
    return low, high


def mcnemar(num_first_only: int, num_second_only: int, *, one_sided: bool) -> float:
    """Exact McNemar test on discordant pairs: without a difference each falls to either side with probability 1/2.

    one_sided: the p-value of "the first is better"; else that of "they differ".
    """
    _check_pairs(num_first_only, num_second_only)
    num_pairs = num_first_only + num_second_only
    if one_sided:
        return _half_binomial_tail(num_first_only, num_pairs)
    return min(1.0, 2 * _half_binomial_tail(max(num_first_only, num_second_only), num_pairs))


def evidence(num_first_only: int, num_second_only: int) -> float:
    """How far discordant pairs speak for "the first is better", as an e-value: a bet on it that began with 1 has this
    much now. Whenever one looks, and however often, it exceeds 1/alpha with probability at most alpha if there is no
    difference (Ville), so that one may stop as soon as it does.

    The bet spreads evenly over all rates above 1/2 at which a discordant pair might fall to the first: with b and c
    pairs, 2 * 2^(b+c) * the integral over them of rate^b * (1 - rate)^c; a sum of whole numbers.
    """
    _check_pairs(num_first_only, num_second_only)
    num_pairs = num_first_only + num_second_only
    ways, term = 0, 1  # of a binomial tail, and of one more in it
    for count in range(num_first_only + 1):
        ways += term
        term = term * (num_pairs + 1 - count) // (count + 1)
    try:
        return ways / ((num_pairs + 1) * math.comb(num_pairs, num_first_only))
    except OverflowError:
        return math.inf


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values (S. Holm, 1979): those at most alpha are all right with probability 1 - alpha, whatever the
    tests have to do with each other.
    """
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def _half_binomial_tail(at_least: int, num_trials: int) -> float:
    """P(X >= at_least) for X ~ Binomial(num_trials, 1/2), from whole numbers."""
    return sum(math.comb(num_trials, count) for count in range(at_least, num_trials + 1)) / 2**num_trials


def _rate_with_tail(at_least: int, num_trials: int, probability: float) -> float:
    """The rate p at which P(X >= at_least) = probability for X ~ Binomial(num_trials, p), by bisection."""
    counts = np.arange(at_least, num_trials + 1)
    log_ways = np.array([_log_choose(num_trials, int(count)) for count in counts])
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        log_terms = log_ways + counts * math.log(middle) + (num_trials - counts) * math.log1p(-middle)
        if np.exp(log_terms).sum() < probability:
            low = middle
        else:
            high = middle


def _log_choose(num_trials: int, count: int) -> float:
    return math.lgamma(num_trials + 1) - math.lgamma(count + 1) - math.lgamma(num_trials - count + 1)


def _check_pairs(num_first_only: int, num_second_only: int) -> None:
    if num_first_only < 0 or num_second_only < 0:
        raise InputError(f"counts of discordant pairs must not be negative: {num_first_only}, {num_second_only}")


def _check_counts(num_success: int, num_episodes: int, alpha: float) -> None:
    if not 0 <= num_success <= num_episodes:
        raise InputError(f"{num_success} successes in {num_episodes} episodes is not possible")
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}; it must be between 0 and 1")
