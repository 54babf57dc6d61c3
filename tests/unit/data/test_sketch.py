"""Quantiles from the sketch: exact at first, within the stated bound then, and the same whatever the way there."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.data.sketch import QuantileSketch

LEVELS = (0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1)
NASTY: dict[str, Any] = {
    "constant": lambda rng, n: np.full(n, 0.1),
    "two values": lambda rng, n: rng.choice([-1.0, 1e-3], n, p=[0.985, 0.015]),
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "sorted": lambda rng, n: np.sort(rng.lognormal(size=n)),
    "reversed": lambda rng, n: -np.sort(rng.exponential(size=n)),
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-30,
    "subnormal": lambda rng, n: rng.integers(-5000, 5000, n) * 5e-324,
    "integers": lambda rng, n: rng.integers(-(10**12), 10**12, n),
    "bytes": lambda rng, n: rng.integers(0, 256, n).astype(np.uint8),
    "half": lambda rng, n: rng.normal(size=n).astype(np.float16),
    "offset": lambda rng, n: 1e9 + rng.normal(size=n) * 1e-3,
    "negative zero": lambda rng, n: np.where(rng.random(n) < 0.5, -0.0, 0.0),
    "single": lambda rng, n: rng.normal(size=n).astype(np.float32),
    "bits": lambda rng, n: np.nan_to_num(rng.integers(0, 2**32, n, np.uint32).view(np.float32), nan=1.0),
    "two skewed": lambda rng, n: np.where(rng.random(n) < 0.1, rng.gamma(2, 10, n), -rng.gamma(2, 0.01, n)),
}
numbers = st.builds(
    lambda kind, seed, n: NASTY[kind](np.random.default_rng(seed), n),
    st.sampled_from(sorted(NASTY)), st.integers(0, 1000), st.integers(1, 3000),
)  # fmt: skip


def sketch_of(values: np.ndarray, max_bins: int, num_pieces: int = 1) -> QuantileSketch:
    sketch = QuantileSketch(max_bins)
    for piece in np.array_split(values, num_pieces):
        sketch.add(piece)
    return sketch


def same(a: QuantileSketch, b: QuantileSketch) -> bool:
    return a.level == b.level and np.array_equal(a.keys, b.keys) and np.array_equal(a.counts, b.counts)


@settings(max_examples=150, deadline=None)
@given(values=numbers)
def test_exact_while_values_have_a_bin_each(values: np.ndarray) -> None:
    values = values[np.isfinite(values)]
    sketch = sketch_of(values, max_bins=4096, num_pieces=3)
    np.testing.assert_array_equal(sketch.quantiles(LEVELS), np.quantile(values.astype(np.float64), LEVELS))
    assert not sketch.errors(LEVELS).any()
    assert sketch.count == len(values)


@settings(max_examples=300, deadline=None)
@given(values=numbers, max_bins=st.sampled_from([16, 100, 1024]))
def test_within_the_bound_that_is_stated(values: np.ndarray, max_bins: int) -> None:
    values = values[np.isfinite(values)].astype(np.float64)
    sketch = sketch_of(values, max_bins, num_pieces=5)
    assert len(sketch.keys) <= max_bins
    true, errors = np.quantile(values, LEVELS), sketch.errors(LEVELS)
    rounding = 4 * np.spacing(np.abs(true)) + np.finfo(np.float64).tiny
    assert (np.abs(sketch.quantiles(LEVELS) - true) <= errors + rounding).all()
    if sketch.level == 0:
        return
    largest = np.max([np.abs(np.quantile(values, LEVELS, method=side)) for side in ("lower", "higher")], axis=0)
    octaves = np.unique(np.stack([np.sign(values), np.frexp(values)[1]]), axis=1).shape[1]
    normal = np.abs(values[values != 0]).min() >= np.finfo(np.float64).tiny
    if normal and sketch.level <= 52:
        assert (errors <= 2 * octaves / max_bins * largest).all()
    if normal and octaves == 1:
        assert (errors <= 2 * np.ptp(values) / (max_bins - 3)).all()


@settings(max_examples=100, deadline=None)
@given(values=numbers, max_bins=st.sampled_from([16, 100, 1024]), data=st.data())
def test_depends_on_the_numbers_alone(values: np.ndarray, max_bins: int, data: st.DataObject) -> None:
    values = values[np.isfinite(values)]
    whole = sketch_of(values, max_bins)
    shuffled = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(values)
    assert same(sketch_of(shuffled, max_bins, num_pieces=7), whole)
    parts = [sketch_of(part, max_bins) for part in np.array_split(shuffled, data.draw(st.integers(1, 8)))]
    while len(parts) > 1:  # any tree of merges
        into = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        into.merge(parts.pop(data.draw(st.integers(0, len(parts) - 1))))
        parts.append(into)
    assert same(parts[0], whole)
    np.testing.assert_array_equal(parts[0].quantiles(LEVELS), whole.quantiles(LEVELS))


def test_shipped_size_keeps_float32_within_a_hundredth() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 600_000, np.uint32).view(np.float32)
    values = values[np.isfinite(values)].astype(np.float64)
    sketch = sketch_of(values, QuantileSketch().max_bins, num_pieces=2)
    true = np.quantile(values, LEVELS)
    assert sketch.level
    assert (np.abs(sketch.quantiles(LEVELS) - true) <= 0.009 * np.abs(true)).all()


def test_shipped_size_is_far_better_on_what_robots_move_through() -> None:
    rng = np.random.default_rng(0)
    values = np.sin(rng.normal(size=600_000)) + 0.3
    sketch = sketch_of(values, QuantileSketch().max_bins)
    off = np.abs(sketch.quantiles(LEVELS) - np.quantile(values, LEVELS)) / np.ptp(values)
    assert sketch.level
    assert off.max() < 1e-5


def test_an_offset_costs_no_resolution() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=300_000)
    sketch = sketch_of(values, QuantileSketch().max_bins)
    assert sketch.level
    assert np.abs(sketch.quantiles(LEVELS) - np.quantile(values, LEVELS)).max() < 1e-4


def test_zero_stays_zero() -> None:
    values = np.concatenate([np.zeros(100), np.random.default_rng(0).normal(size=300)])
    for sign in (1, -1):
        sketch = sketch_of(np.sort(sign * np.abs(values)), 32)
        levels = [0.1, 0.9] if sign > 0 else [0.9, 0.1]
        assert sketch.quantiles(levels)[0] == 0 == sketch.errors(levels)[0]
        assert sketch.errors(levels)[1] > 0


def test_a_finer_sketch_merges_into_a_coarser_one_and_not_the_reverse() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    coarse = QuantileSketch(100)
    coarse.merge(sketch_of(values, 1000))
    assert same(coarse, sketch_of(values, 100))
    with pytest.raises(ValueError, match="too coarse"):
        QuantileSketch(1000).merge(coarse)


def test_merging_nothing_changes_nothing() -> None:
    sketch = sketch_of(np.arange(50.0), 10)
    before = sketch.level, sketch.keys.copy()
    sketch.merge(QuantileSketch(10))
    sketch.add(np.zeros(0))
    assert before[0] == sketch.level
    np.testing.assert_array_equal(before[1], sketch.keys)
