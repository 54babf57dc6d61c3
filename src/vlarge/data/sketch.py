"""Quantiles of a stream of numbers in bounded memory: counts by value, then by ever shorter prefixes of its bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Small datasets stay exact: up to this many different values are counted one by one.
MAX_BINS = 2**17
_MAGNITUDE = np.int64(2**63 - 1)
_LEAST_NORMAL = 2.0**-1022


class QuantileSketch:
    """Counts of at most `max_bins` bins; a bin is a run of neighbouring float64 numbers.

    A number's key is its float64 bit pattern as an int64 of the same order; its bin is the key without its `level`
    lowest bits, where `level` is the least at which all numbers seen fill at most `max_bins` bins (bins of relative
    width as in DDSketch, Masson et al. 2019, that widen as in UDDSketch, Epicoco et al. 2020). More numbers never lower
    that level, and the bins of a level are unions of those of the level below, so what is collapsed on the way would be
    collapsed at the end: the sketch is a function of the multiset of numbers, whatever their order, pieces and merges.

    Error. While at most `max_bins` different values were seen, quantiles equal numpy's ("linear"). After that the two
    order statistics that a quantile interpolates are known up to their bins, so it is off by less than the wider one;
    `errors` gives the bound. A bin is at most w = 2**(level - 52) |x| wide at a number x (0 is exact, and numbers
    up to 2**-1022 then count as 0). Numbers of E octaves (sign and exponent) fill at most E 2**(52 - level) bins, so
    the least level has w < 2 E / max_bins |x|: with the default under 0.1 % of the quantile for 64 octaves, under 0.9 %
    for whatever float32 holds. Numbers within one octave, such as a large offset with noise, fill more than
    max_bins / 2 bins of one width, so w < 2 (max - min) / (max_bins - 3). A rank is off by less than the bin's count;
    no smaller bound holds for all data, as numbers closer together than a bin are not told apart.

    Memory: 16 bytes per bin.
    """

    def __init__(self, max_bins: int = MAX_BINS) -> None:
        self.max_bins = max_bins
        self.level = 0
        self.keys = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self._first_key = _MAGNITUDE
        self._last_key = ~_MAGNITUDE

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def add(self, values: np.ndarray) -> None:
        """Add finite numbers [n] of any type; integers beyond 2**53 are taken as their nearest float64."""
        if len(values) == 0:
            return
        keys = _to_keys(np.sort(values).astype(np.float64, copy=False))
        first, last = keys[0], keys[-1]
        keys >>= self.level
        starts = _starts(keys)
        self._fold(first, last, keys[starts], np.diff(starts, append=len(keys)))

    def merge(self, other: QuantileSketch) -> None:
        """Take in the numbers of another sketch, of as many bins or more, which stays as it is."""
        if other.max_bins < self.max_bins:
            raise ValueError(f"a sketch of {other.max_bins} bins is too coarse for one of {self.max_bins}")
        if len(other.keys) == 0:
            return
        if other.level > self.level:
            self._collapse(other.level - self.level)
        levels = self.level - other.level
        self._fold(other._first_key, other._last_key, *_sum_equal(other.keys >> levels, other.counts))

    def _fold(self, first_key: np.int64, last_key: np.int64, keys: np.ndarray, counts: np.ndarray) -> None:
        """Add ascending, different keys of the present level."""
        self._first_key, self._last_key = min(self._first_key, first_key), max(self._last_key, last_key)
        if len(self.keys):
            keys, counts = np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts])
            order = np.argsort(keys, kind="stable")  # linear in two sorted runs
            keys, counts = _sum_equal(keys[order], counts[order])
        self.keys, self.counts = keys, counts
        if len(keys) > self.max_bins:
            # Neighbours share a bin once the bits in which they differ are gone.
            differing = (keys[1:] ^ keys[:-1]).view(np.uint64)
            self._collapse(int(np.partition(differing, -self.max_bins)[-self.max_bins]).bit_length())

    def _collapse(self, levels: int) -> None:
        self.level += levels
        if len(self.keys):
            self.keys, self.counts = _sum_equal(self.keys >> levels, self.counts)

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """float64 [len(levels)], linearly interpolated between order statistics. At least one number must be there."""
        ranks, fraction = locate(self.count, levels)
        low, high, place = self._order_statistics(ranks)
        return interpolate(low + (high - low) * place, fraction)

    def errors(self, levels: Sequence[float]) -> np.ndarray:
        """float64 [len(levels)]: no quantile is off by more than this; 0 where it is exact."""
        ranks, fraction = locate(self.count, levels)
        low, high, place = self._order_statistics(ranks)
        return interpolate((high - low) * np.maximum(place, 1 - place), fraction)

    def _order_statistics(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each rank the ends of the bin of its number, and where in it that is taken to be.

        A bin's numbers are taken to lie evenly between its ends, so that place is in (0, 1).
        """
        stops = self.counts.cumsum()
        bins = np.searchsorted(stops, ranks, side="right")
        place = (ranks - stops[bins] + self.counts[bins] + 0.5) / self.counts[bins]
        first = self.keys[bins] << self.level
        last = first | (np.int64(1) << self.level) - 1
        low, high = (_from_keys(np.clip(keys, self._first_key, self._last_key)) for keys in (first, last))
        if self.level:
            high[(low == 0) & (high < _LEAST_NORMAL)] = 0  # 0 shares its bin with subnormal numbers
        return low, high, place


def locate(count: int, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles as numpy's "linear" places them: between which order statistics, and how far from one to the next.

    Returns ranks from 0, int64 [2, len(levels)], and fractions in [0, 1), float64 [len(levels)].
    """
    place = np.asarray(levels, np.float64) * (count - 1)
    below = np.floor(place)
    return np.minimum(np.stack([below, below + 1]), count - 1).astype(np.int64), place - below


def interpolate(pair: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """From pair[0] to pair[1], rounded as numpy's quantiles are: monotonic, and exact at both ends."""
    low, high = pair
    step = high - low
    return np.where(fraction < 0.5, low + step * fraction, high - step * (1 - fraction))


def _to_keys(ordered: np.ndarray) -> np.ndarray:
    """Of ascending float64 numbers, which it overwrites."""
    ordered += 0.0  # -0.0 becomes 0.0
    keys = ordered.view(np.int64)
    keys[: np.searchsorted(ordered, 0.0)] ^= _MAGNITUDE
    return keys


def _from_keys(keys: np.ndarray) -> np.ndarray:
    return (keys ^ ((keys >> 63) & _MAGNITUDE)).view(np.float64)


def _starts(ordered: np.ndarray) -> np.ndarray:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def _sum_equal(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ascending keys, each once, with the sums of their counts."""
    starts = _starts(keys)
    return keys[starts], np.add.reduceat(counts, starts)
