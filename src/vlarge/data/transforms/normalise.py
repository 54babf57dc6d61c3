"""Numbers scaled by statistics, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.stats import FeatureStats

STATISTICS = ("min", "max", "mean", "std", "q01", "q99")
# What a constant dimension becomes: what openpi and LeRobot, for quantiles, and Isaac-GR00T, for the range, make of it.
CONSTANT = {"quantile": -1.0, "min_max": 0.0, "mean_std": 0.0}


class Normalizer:
    """Scales each dimension by its statistics, as LeRobot does. Not clipped.

    "quantile": 2 (x - q01) / (q99 - q01) - 1. "min_max": 2 (x - min) / (max - min) - 1. "mean_std": (x - mean) /
    (std + 1e-8). openpi adds 1e-6 to the range and to std; LeRobot's form is followed, as it hardly depends on the unit
    in which a joint is measured, and its checkpoints are the ones exchanged.

    Where LeRobot and openpi divide by 1e-8 or 1e-6 because a dimension never moved, this does not: a constant dimension
    (min and max equal up to the rounding of float32) becomes CONSTANT[method] whatever the robot does later, and comes
    back as the constant. Where only the quantiles fall on one value, the whole range takes their place.
    """

    def __init__(self, method: str, stats: FeatureStats) -> None:
        """Raises InputError for an unknown method and for statistics that are not finite or not in order."""
        _check(stats)
        self.method = method
        self.stats = stats
        centre, width, shift = _affine(method, stats)
        constant = _equal(stats.min, stats.max)
        self._centre = np.where(constant, stats.min, centre)
        self._shift = np.where(constant, CONSTANT[method], shift)
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


def _affine(method: str, stats: FeatureStats) -> tuple[np.ndarray, np.ndarray, float]:
    # Centre, width and shift of y = (x - centre) / width + shift.
    if method == "quantile":
        pointlike = _equal(stats.q01, stats.q99)
        low = np.where(pointlike, stats.min, stats.q01)
        high = np.where(pointlike, stats.max, stats.q99)
        return low, (high - low) / 2, -1.0
    if method == "min_max":
        return stats.min, (stats.max - stats.min) / 2, -1.0
    if method == "mean_std":
        return stats.mean, stats.std + 1e-8, 0.0
    raise InputError(f"data.normalization = {method!r} is unknown; use 'quantile', 'mean_std' or 'min_max'")


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isclose(a, b, rtol=1e-6, atol=1e-9)


def _check(stats: FeatureStats) -> None:
    advice = "take statistics of the dataset anew, or use another checkpoint"
    for name in STATISTICS:
        values = getattr(stats, name)
        if values.shape != stats.mean.shape:
            raise InputError(f"statistics have {len(values)} values of {name} and {len(stats.mean)} of mean; {advice}")
        if not (finite := np.isfinite(values)).all():
            dim = int(finite.argmin())
            raise InputError(f"the statistic {name} of dimension {dim} is {values[dim]}; {advice}")
    for low, high in (("min", "max"), ("q01", "q99")):
        least, most = getattr(stats, low), getattr(stats, high)
        in_order = (least <= most) | _equal(least, most)
        if not in_order.all():
            raise InputError(f"the statistic {low} of dimension {int(in_order.argmin())} is above {high}; {advice}")
