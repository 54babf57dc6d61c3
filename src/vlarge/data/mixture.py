"""Which dataset stands at which position of a weighted mixture: counts stay within one of weight × position."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.order import Order

MAX_PERIOD = 100_000


class Mixture:
    """Positions 0, 1, 2, ... of an endless run over several orders. One order alone is a mixture of one.

    The datasets follow each other in a fixed pattern that repeats: the i-th sample of dataset k has its turn between
    ⌊(i - 1) / w⌋ and ⌈i / w⌉, earliest deadline first, which keeps every count within one of w × position at any
    position (Baruah et al., "Proportionate progress", Algorithmica 1996). Each dataset runs through its own epochs.
    shares: the part of all positions that each dataset has.
    weights: any positive numbers; as decimals of few digits, because their common denominator is the pattern's period.
    """

    def __init__(self, orders: Sequence[Order], weights: Sequence[float] = ()) -> None:
        self.orders = tuple(orders)
        shares = whole_shares(weights or [1.0] * len(self.orders))
        self._period = sum(shares)
        self.shares = [share / self._period for share in shares]
        self._shares = np.array(shares)
        self._pattern = _pattern(shares)
        self._places = [np.flatnonzero(self._pattern == k) for k in range(len(shares))]

    def counts(self, position: int) -> np.ndarray:
        """int64 [datasets]: samples of each before this position."""
        rounds, within = divmod(position, self._period)
        inside = [np.searchsorted(places, within) for places in self._places]
        return rounds * self._shares + np.array(inside, np.int64)

    def position_of(self, dataset: int, index: int) -> int:
        """Where sample number `index` of a dataset stands."""
        rounds, within = divmod(index, int(self._shares[dataset]))
        return int(rounds * self._period + self._places[dataset][within])

    def positions_of(self, dataset: int, first: int, last: int) -> np.ndarray:
        """int64 [last - first]: where samples [first, last) of a dataset stand."""
        rounds, within = np.divmod(np.arange(first, last), self._shares[dataset])
        return rounds * self._period + self._places[dataset][within]

    def samples(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start, 3] of (dataset, span, offset) at positions [start, stop)."""
        result = np.empty((stop - start, 3), np.int64)
        for k, (first, last) in enumerate(zip(self.counts(start), self.counts(stop), strict=True)):
            rows = self.positions_of(k, first, last) - start
            result[rows, 0] = k
            result[rows, 1:] = self.orders[k].samples(int(first), int(last))
        return result


def whole_shares(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the same proportion. Raises InputError for weights that have none small enough."""
    parts = [Fraction(str(weight)) for weight in weights]
    if not parts or min(parts) <= 0:
        raise InputError(f"weights of a mixture must be above 0, they are {', '.join(map(str, weights))}")
    scale = lcm(*(part.denominator for part in parts))
    whole = [int(part * scale) for part in parts]
    common = gcd(*whole)
    if sum(whole) // common > MAX_PERIOD:
        raise InputError(
            f"weights {', '.join(map(str, weights))} have too many digits: as whole numbers they add up to "
            f"{sum(whole) // common}, which may be at most {MAX_PERIOD}; round them"
        )
    return [number // common for number in whole]


def _pattern(shares: Sequence[int]) -> np.ndarray:
    # int64 [period]. Sample i (from 1) of dataset k may stand from release ⌊(i - 1)·period / share⌋ on.
    period = sum(shares)
    waiting: list[tuple[int, int, int]] = []  # (deadline, dataset, number of the sample)
    later = [(0, k, 1) for k in range(len(shares))]  # (release, dataset, number of the sample)
    pattern = np.empty(period, np.int64)
    for turn in range(period):
        while later and later[0][0] <= turn:
            _, k, i = heapq.heappop(later)
            heapq.heappush(waiting, (-(-i * period // shares[k]), k, i))
        _, k, i = heapq.heappop(waiting)
        pattern[turn] = k
        if i < shares[k]:
            heapq.heappush(later, (i * period // shares[k], k, i + 1))
    return pattern
