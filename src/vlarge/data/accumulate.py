"""Statistics of rows of numbers and of pixels, gathered piece by piece and mergeable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.sketch import MAX_BINS, QuantileSketch, interpolate, locate

# Rows wait until there are this many times the bins: sorting them in takes a sketch's whole length each time.
PENDING_PER_BIN = 2


@dataclass(frozen=True, eq=False)
class FeatureStats:
    """Per-dimension statistics, each float64 [dim]; std is the population's; count is the number of rows."""

    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray
    q99: np.ndarray
    count: int

    def to_json(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("min", "max", "mean", "std", "q01", "q99")}
        return {**arrays, "count": self.count}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FeatureStats:
        arrays = {name: np.asarray(data[name], np.float64) for name in ("min", "max", "mean", "std", "q01", "q99")}
        return cls(**arrays, count=int(data["count"]))


class Accumulator:
    """Takes rows array by array; knows min, max, mean, std and any quantile of each dimension.

    min and max are exact. mean and std are float64 sums around each piece's own mean, merged as in Chan, Golub, LeVeque
    1979, so that a large offset costs no digits; their last bits depend on the pieces and on the order of merges, which
    the caller keeps fixed. Quantiles depend on neither: they are exact up to `max_bins` different values in a dimension
    and then within the bound of `QuantileSketch`. Numbers must stay below 1e150, where squares overflow.

    Memory per dimension: at most max_bins x (16 bytes + PENDING_PER_BIN numbers as they came).
    """

    def __init__(self, max_bins: int = MAX_BINS) -> None:
        self.count = 0
        self._max_bins = max_bins
        self._pending: list[np.ndarray] = []  # [dim, n] each: rows that no sketch has yet
        self._num_pending = 0
        self._sketches: list[QuantileSketch] = []

    def add(self, rows: np.ndarray) -> None:
        """Add rows [n, dim]; all must be finite."""
        if len(rows) == 0:
            return
        columns = np.array(rows.T, order="C")  # a copy: a dimension's numbers side by side, and no view of a file
        values = columns.astype(np.float64)
        low, high = columns.min(1).astype(np.float64), columns.max(1).astype(np.float64)
        mean = values.mean(1)
        values -= mean[:, None]
        self._fold(len(rows), low, high, mean, np.einsum("dn,dn->d", values, values))
        self._keep([columns], len(rows))

    def merge(self, other: Accumulator) -> None:
        """Take in the rows of another accumulator of the same dimensions, which stays as it is."""
        if other.count == 0:
            return
        if self.count and len(self.mean) != len(other.mean):
            raise ValueError(f"statistics of {len(self.mean)} and {len(other.mean)} dimensions do not merge")
        self._fold(other.count, other.min, other.max, other.mean, other._square)
        if other._sketches:
            self._sketches = self._sketches or [QuantileSketch(self._max_bins) for _ in other._sketches]
            for own, theirs in zip(self._sketches, other._sketches, strict=True):
                own.merge(theirs)
        self._keep(other._pending, other._num_pending)

    def _fold(self, count: int, low: np.ndarray, high: np.ndarray, mean: np.ndarray, square: np.ndarray) -> None:
        if self.count == 0:
            self.min, self.max, self.mean, self._square, self.count = low, high, mean, square, count
            return
        total = self.count + count
        delta = mean - self.mean
        self.min, self.max = np.minimum(self.min, low), np.maximum(self.max, high)
        self._square = self._square + square + delta**2 * (self.count * (count / total))
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def _keep(self, columns: Sequence[np.ndarray], num_rows: int) -> None:
        self._pending.extend(columns)
        self._num_pending += num_rows
        if self._num_pending >= PENDING_PER_BIN * self._max_bins:
            self._sketch_pending()

    def _sketch_pending(self) -> None:
        if self._num_pending:
            self._sketches = self._sketches or [QuantileSketch(self._max_bins) for _ in self._pending[0]]
            for d, sketch in enumerate(self._sketches):
                sketch.add(np.concatenate([columns[d] for columns in self._pending]))
            self._pending, self._num_pending = [], 0

    @property
    def std(self) -> np.ndarray:
        return np.where(self.min == self.max, 0, np.sqrt(np.maximum(self._square, 0) / self.count))

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """float64 [len(levels), dim], linearly interpolated."""
        if self._num_pending == self.count <= self._max_bins:  # no sketch yet, and none needed
            ordered = np.sort(np.concatenate(self._pending, axis=1), axis=1).astype(np.float64)
            ranks, fraction = locate(self.count, levels)
            return interpolate(ordered[:, ranks].transpose(1, 2, 0), fraction[:, None])
        self._sketch_pending()
        columns = [sketch.quantiles(levels) for sketch in self._sketches]
        return np.stack(columns, axis=1) if columns else np.zeros((len(levels), 0))

    def quantile_errors(self, levels: Sequence[float]) -> np.ndarray:
        """float64 [len(levels), dim]: no quantile is off by more than this; 0 where it is exact."""
        self._sketch_pending()
        columns = [sketch.errors(levels) for sketch in self._sketches]
        return np.stack(columns, axis=1) if columns else np.zeros((len(levels), 0))

    def result(self) -> FeatureStats:
        """Raises InputError when no row was added."""
        if self.count == 0:
            raise InputError(
                "no episode has a row of finite numbers to take statistics of; "
                "check data.path and data.exclude_episodes, or run vlarge data check"
            )
        return FeatureStats(**self.summary((0.01, 0.99)), count=self.count)

    def summary(self, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """min, max, mean, std and a quantile "q<percent>" per level, each float64 [dim]. A row must have been added."""
        mean = np.clip(self.mean, self.min, self.max)
        moments = {"min": self.min, "max": self.max, "mean": mean, "std": self.std}
        return {**moments, **_named(levels, self.quantiles(levels))}


def compute(arrays: Iterable[np.ndarray]) -> FeatureStats:
    """Statistics of the rows of all arrays [n, dim] together. Raises InputError when there is no row."""
    accumulator = Accumulator()
    for rows in arrays:
        accumulator.add(rows)
    return accumulator.result()


def merge(parts: Sequence[Accumulator]) -> Accumulator:
    """One feature over several datasets of one embodiment, in the order given; the parts stay as they are.

    Raises InputError when the parts differ in dimensions.
    """
    dims = sorted({len(part.mean) for part in parts if part.count})
    if len(dims) > 1:
        raise InputError(f"datasets of one embodiment have {' and '.join(map(str, dims))} dimensions; name them apart")
    whole = Accumulator()
    for part in parts:
        whole.merge(part)
    return whole


class PixelHistogram:
    """Counts of every uint8 level per channel, so that pixel statistics are exact, quantiles too, at a fixed size."""

    def __init__(self) -> None:
        self.counts = np.zeros((3, 256), np.int64)

    def add(self, images: np.ndarray) -> None:
        """Add images, uint8 [n, H, W, 3]."""
        for channel in range(3):
            self.counts[channel] += np.bincount(images[..., channel].ravel(), minlength=256)

    def merge(self, other: PixelHistogram) -> None:
        self.counts += other.counts

    def summary(self, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """min, max, mean, std and a quantile "q<percent>" per level, each float64 [3]; pixel values in [0, 1]."""
        values = np.arange(256) / 255
        weights = self.counts / self.counts.sum(1, keepdims=True)
        mean = weights @ values
        present = self.counts > 0
        return {
            "min": values[present.argmax(1)],
            "max": values[255 - present[:, ::-1].argmax(1)],
            "mean": mean,
            "std": np.sqrt((weights * (values - mean[:, None]) ** 2).sum(1)),
            **_named(levels, self._quantiles(levels)),
        }

    def _quantiles(self, levels: Sequence[float]) -> np.ndarray:
        cumulative = self.counts.cumsum(1)
        result = np.empty((len(levels), 3))
        for channel, running in enumerate(cumulative):
            rank = np.asarray(levels) * (running[-1] - 1)
            low = np.searchsorted(running, np.floor(rank), side="right")
            high = np.searchsorted(running, np.ceil(rank), side="right")
            result[:, channel] = (low + (high - low) * (rank - np.floor(rank))) / 255
        return result


def _named(levels: Sequence[float], quantiles: np.ndarray) -> dict[str, np.ndarray]:
    return {f"q{round(100 * level):02d}": row for level, row in zip(levels, quantiles, strict=True)}
