"""Statistics of features over a dataset: exact, mergeable, from the data itself and never from its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vlarge.contracts import ACTION, STATE, InputError

if TYPE_CHECKING:
    from vlarge.data.index import Dataset

# Rows kept for quantiles take at most this much per feature. Beyond it every second row is dropped, again and again:
# quantiles are then those of evenly spaced rows, while min, max, mean and std stay exact.
MAX_QUANTILE_BYTES = 512 * 2**20


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


def _named(levels: Sequence[float], quantiles: np.ndarray) -> dict[str, np.ndarray]:
    return {f"q{round(100 * level):02d}": row for level, row in zip(levels, quantiles, strict=True)}


class Accumulator:
    """Takes rows array by array; knows min, max, mean, std (Chan's merge of Welford, float64) and any quantile."""

    def __init__(self, max_quantile_bytes: int = MAX_QUANTILE_BYTES) -> None:
        self.count = 0
        self._max_quantile_bytes = max_quantile_bytes
        self._rows: list[np.ndarray] = []
        self._rows_bytes = 0
        self._stride = 1

    def add(self, rows: np.ndarray) -> None:
        """Add rows [n, dim]; all must be finite."""
        if len(rows) == 0:
            return
        self._keep_for_quantiles(rows)
        values = rows.astype(np.float64)
        low, high, mean = values.min(0), values.max(0), values.mean(0)
        square = ((values - mean) ** 2).sum(0)
        if self.count == 0:
            self.min, self.max, self.mean, self._square, self.count = low, high, mean, square, len(rows)
            return
        self.min, self.max = np.minimum(self.min, low), np.maximum(self.max, high)
        total = self.count + len(rows)
        delta = mean - self.mean
        self.mean = self.mean + delta * (len(rows) / total)
        self._square = self._square + square + delta**2 * (self.count * len(rows) / total)
        self.count = total

    def _keep_for_quantiles(self, rows: np.ndarray) -> None:
        # Row i of the whole stream is kept when i is a multiple of the stride.
        kept = rows[-self.count % self._stride :: self._stride].copy()
        self._rows.append(kept)
        self._rows_bytes += kept.nbytes
        while self._rows_bytes > self._max_quantile_bytes and sum(map(len, self._rows)) > 1:
            self._rows = [np.concatenate(self._rows)[::2].copy()]
            self._rows_bytes = self._rows[0].nbytes
            self._stride *= 2

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self._square / self.count)

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """float64 [len(levels), dim], linearly interpolated."""
        rows = np.concatenate(self._rows)
        columns = [np.quantile(rows[:, d].astype(np.float64), levels) for d in range(rows.shape[1])]
        return np.stack(columns, axis=1) if columns else np.zeros((len(levels), 0))

    def result(self) -> FeatureStats:
        """Raises InputError when no row was added."""
        if self.count == 0:
            raise InputError("no episode with frames to take statistics of; check data.path and data.exclude_episodes")
        return FeatureStats(**self.summary((0.01, 0.99)), count=self.count)

    def summary(self, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """min, max, mean, std and a quantile "q<percent>" per level, each float64 [dim]."""
        moments = {"min": self.min, "max": self.max, "mean": self.mean, "std": self.std}
        return {**moments, **_named(levels, self.quantiles(levels))}


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


def compute(arrays: Iterable[np.ndarray]) -> FeatureStats:
    """Statistics of the rows of all arrays [n, dim] together. Raises InputError when there is no row."""
    accumulator = Accumulator()
    for rows in arrays:
        accumulator.add(rows)
    return accumulator.result()


def dataset_stats(dataset: Dataset) -> dict[str, FeatureStats]:
    """Statistics of state and action over the usable episodes. Raises InputError for NaN or inf, naming the episode."""
    accumulators = {STATE: Accumulator(), ACTION: Accumulator()}
    for episode in dataset.episodes:
        table = dataset.read_table(episode)
        for key, rows in ((STATE, table.state_TA), (ACTION, table.action_TA)):
            if not np.isfinite(rows).all():
                frame = int(np.argmin(np.isfinite(rows).all(1)))
                raise InputError(
                    f"{dataset.root}: NaN or inf in {key}, episode {episode.index} frame {frame}; "
                    f"leave the episode out with --data.exclude_episodes {episode.index}"
                )
            accumulators[key].add(rows)
    return {key: accumulator.result() for key, accumulator in accumulators.items()}
