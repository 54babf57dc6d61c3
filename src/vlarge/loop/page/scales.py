"""From numbers to places on a chart: domains, ticks, smoothing, and as many points as a screen can show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

LOG_RATIO = 10.0  # values that span more than this are easier to read on a logarithmic scale


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [0, 1], linearly or by logarithm."""

    low: float
    high: float
    log: bool

    def place(self, values: np.ndarray | float) -> np.ndarray:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        return ((np.log(values) if self.log else np.asarray(values)) - low) / (high - low)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)


def fit(values: np.ndarray, *, log: bool = False) -> Scale:
    """A scale with room for all finite `values`: logarithmic if `log` allows it and they span a decade, else from 0."""
    values = values[np.isfinite(values)]
    if not len(values):
        return Scale(0.0, 1.0, False)
    low, high = float(values.min()), float(values.max())
    if log and low > 0 and high / low >= LOG_RATIO:
        return Scale(low / 1.1, high * 1.1, True)
    bottom, top = min(low, 0.0), max(high, 0.0)
    margin = 0.08 * (top - bottom) or 1.0
    return Scale(bottom - margin if bottom < 0 else 0.0, top + margin if top > 0 or bottom == 0 else 0.0, False)


def linear_ticks(low: float, high: float, at_most: int = 5) -> list[float]:
    """Round numbers within [low, high]: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / at_most))
    steps = [factor * power for factor in (1, 2, 5, 10, 20)]
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < at_most)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within [low, high]; with their double and fivefold where there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: math.ceil(len(ticks) / 6)]


def smooth(values: np.ndarray, num_steps: int) -> np.ndarray:
    """Mean of the finite values among the `num_steps` (odd) around each.

    The window stays even at the start, where losses fall fast, and is cut off at the end.
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    place = np.arange(len(values))
    before = np.minimum(place, num_steps // 2)
    after = np.minimum(before, len(values) - 1 - place)
    num = counts[place + after + 1] - counts[place - before]
    total = sums[place + after + 1] - sums[place - before]
    return np.where(num > 0, total / np.maximum(num, 1), np.nan)


def thin(values: np.ndarray, num_points: int) -> np.ndarray:
    """Indices of at most about `num_points` values that keep every visible extreme: least and greatest per bucket."""
    if len(values) <= num_points:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), num_points // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        bucket = values[start:stop]
        if np.isfinite(bucket).any():
            kept |= {start + int(np.nanargmin(bucket)), start + int(np.nanargmax(bucket))}
    return np.array(sorted(kept))
