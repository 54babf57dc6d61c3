"""Numbers scaled by statistics, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.stats import FeatureStats


def _affine(method: str, stats: FeatureStats) -> tuple[np.ndarray, np.ndarray, float]:
    # Centre, width and shift of y = (x - centre) / width + shift.
    if method == "quantile":  # openpi's formula; where both quantiles fall on one value, the whole range
        pointlike = np.isclose(stats.q01, stats.q99, rtol=1e-6, atol=1e-9)
        low = np.where(pointlike, stats.min, stats.q01)
        high = np.where(pointlike, stats.max, stats.q99)
        return low, (high - low + 1e-6) / 2, -1.0
    if method == "min_max":
        return stats.min, (stats.max - stats.min) / 2, -1.0
    if method == "mean_std":
        return stats.mean, stats.std + 1e-6, 0.0
    raise InputError(f"data.normalization = {method!r} is unknown; use 'quantile', 'mean_std' or 'min_max'")


class Normalizer:
    """Scales each dimension by its statistics. Not clipped. A constant dimension becomes 0 and comes back constant.

    method: "quantile" (1st and 99th percentile to -1 and 1), "min_max" (to -1 and 1) or "mean_std".
    """

    def __init__(self, method: str, stats: FeatureStats) -> None:
        self.method = method
        self.stats = stats
        centre, width, shift = _affine(method, stats)
        constant = np.isclose(stats.min, stats.max, rtol=1e-6, atol=1e-9)
        self._centre = np.where(constant, stats.min, centre)
        self._shift = np.where(constant, 0.0, shift)
        self._width = np.where(constant, 0.0, width)
        self._inverse_width = np.where(constant, 0.0, 1 / np.where(constant, 1.0, width))

    @property
    def dim(self) -> int:
        return len(self.stats.mean)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Raw [..., dim] to normalised float32 [..., dim]."""
        return ((x - self._centre) * self._inverse_width + self._shift).astype(np.float32)

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Normalised [..., dim] to raw float32 [..., dim]."""
        return ((y - self._shift) * self._width + self._centre).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "stats": self.stats.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Normalizer:
        return cls(data["method"], FeatureStats.from_json(data["stats"]))
