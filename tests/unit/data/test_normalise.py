"""Normalised numbers are LeRobot's where a dimension moves, and harmless where it does not; each comes back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data.stats import FeatureStats, compute
from vlarge.data.transforms import Normalizer
from vlarge.data.transforms.normalise import CONSTANT, STATISTICS

METHODS = ("quantile", "mean_std", "min_max")


def _awkward_rows() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    rows[:, 1] = 0.3  # constant
    rows[:, 2] = 0  # rare: both quantiles are 0
    rows[500:502, 2] = 5, -3
    rows[:, 3] *= 1e-3
    return rows


@pytest.mark.parametrize("method", METHODS)
def test_inverse_returns_the_rows(method: str) -> None:
    rows = _awkward_rows()
    normalizer = Normalizer(method, compute([rows]))
    normalised = normalizer(rows)
    assert normalised.dtype == np.float32
    assert np.isfinite(normalised).all()
    assert np.abs(normalised).max() < 40
    back = normalizer.inverse(normalised)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, rows, rtol=1e-4, atol=1e-5)


@st.composite
def datasets(draw: st.DrawFn) -> np.ndarray:
    """float64 [rows, dims]: each dimension moves, never moves, or moves by rounding only, somewhere, in some unit."""
    num_rows = draw(st.integers(1, 40))
    columns = []
    for _ in range(draw(st.integers(1, 5))):
        offset = draw(st.sampled_from([0.0, 0.3, -7.0, 1e3]))
        kind = draw(st.sampled_from(["moves", "constant", "rounds", "rarely"]))
        scale = draw(st.floats(1e-3, 1e3))
        moves = np.array(draw(st.lists(st.floats(-1, 1), min_size=num_rows, max_size=num_rows)))
        factor = {"moves": scale, "constant": 0.0, "rounds": abs(offset) * 1e-7, "rarely": scale * (moves > 0.9)}[kind]
        columns.append(offset + factor * moves)
    return np.stack(columns, axis=1)


def _lerobots(method: str, x: np.ndarray, stats: FeatureStats) -> np.ndarray:
    """As NormalizerProcessorStep of LeRobot 0.6.1; test_prompts_beside_peers.py has that itself."""
    if method == "mean_std":
        return (x - stats.mean) / (stats.std + 1e-8)
    low, high = (stats.q01, stats.q99) if method == "quantile" else (stats.min, stats.max)
    return 2 * (x - low) / np.where(high == low, 1e-8, high - low) - 1


@settings(max_examples=200, deadline=None)
@given(rows=datasets(), method=st.sampled_from(METHODS), elsewhere=st.floats(-100, 100))
def test_any_dataset_is_finite_comes_back_and_is_lerobots_where_it_moves(
    rows: np.ndarray, method: str, elsewhere: float
) -> None:
    stats = compute([rows])
    normalizer = Normalizer(method, stats)
    constant = np.isclose(stats.min, stats.max, rtol=1e-6, atol=1e-9)
    ordinary = ~constant & ~np.isclose(stats.q01, stats.q99, rtol=1e-6, atol=1e-9)
    normalised = normalizer(rows)
    assert np.isfinite(normalised).all()
    np.testing.assert_allclose(
        normalised[:, ordinary], _lerobots(method, rows, stats)[:, ordinary], rtol=1e-6, atol=1e-6
    )
    reach = np.abs(normalised).max(0, initial=1.0) * (stats.max - stats.min)
    assert (np.abs(normalizer.inverse(normalised) - rows) <= 1e-6 * (np.abs(rows) + reach) + 1e-9).all()
    moved = rows + elsewhere  # where this robot never was
    assert (normalizer(moved)[:, constant] == CONSTANT[method]).all()
    back = normalizer.inverse(np.full_like(rows, elsewhere))[:, constant]
    np.testing.assert_allclose(back, rows[:, constant], rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize(("method", "value"), [("quantile", -1), ("min_max", 0), ("mean_std", 0)])
def test_a_constant_is_what_upstream_makes_of_it(method: str, value: int) -> None:
    stats = compute([_awkward_rows()])
    assert Normalizer(method, stats)(np.array([0.0, 9.0, 0.0, 0.0]))[1] == value
    assert Normalizer(method, stats).inverse(np.full(4, 3.0))[1] == np.float32(0.3)
    if method != "min_max":  # which is Isaac-GR00T's, and 0 there
        assert _lerobots(method, stats.min, stats)[1] == value


@pytest.mark.parametrize("method", METHODS)
def test_statistics_of_a_single_frame(method: str) -> None:
    frame = np.array([[0.5, -3.0, 1e6]])
    normalizer = Normalizer(method, compute([frame]))
    assert (normalizer(frame + 1000) == CONSTANT[method]).all()
    np.testing.assert_array_equal(normalizer.inverse(np.full(3, 7.0)), frame[0].astype(np.float32))


def test_quantiles_are_not_clipped_and_close_to_openpis() -> None:
    rows = np.linspace(0, 10, 101)[:, None]
    normalizer = Normalizer("quantile", compute([rows]))
    q01, q99 = np.quantile(rows, [0.01, 0.99])
    np.testing.assert_allclose(normalizer(rows), (rows - q01) / (q99 - q01 + 1e-6) * 2 - 1, rtol=1e-5, atol=1e-6)
    assert normalizer(np.array([20.0]))[0] > 2


def test_rare_values_are_scaled_by_the_whole_range() -> None:
    rows = _awkward_rows()
    normalised = Normalizer("quantile", compute([rows]))(rows)[:, 2]
    np.testing.assert_allclose([normalised.min(), normalised.max()], [-1, 1], atol=1e-6)


def test_mean_std_and_min_max() -> None:
    rows = np.random.default_rng(1).normal(3, 2, size=(1000, 2))
    standard = Normalizer("mean_std", compute([rows]))(rows)
    np.testing.assert_allclose([standard.mean(), standard.std()], [0, 1], atol=1e-5)
    ranged = Normalizer("min_max", compute([rows]))(rows)
    np.testing.assert_allclose([ranged.min(), ranged.max()], [-1, 1], atol=1e-6)


def test_unknown_method() -> None:
    with pytest.raises(InputError, match="'quantile', 'mean_std' or 'min_max'"):
        Normalizer("minmax", compute([_awkward_rows()]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_are_not_finite_are_refused_by_dimension(name: str, value: float) -> None:
    stats = compute([_awkward_rows()])
    values = getattr(stats, name).copy()
    values[2] = value
    with pytest.raises(InputError, match=f"the statistic {name} of dimension 2 is {value}; take"):
        Normalizer("min_max", replace(stats, **{name: values}))


def test_statistics_out_of_order_or_incomplete_are_refused() -> None:
    stats = compute([_awkward_rows()])
    with pytest.raises(InputError, match="the statistic q01 of dimension 0 is above q99"):
        Normalizer("quantile", replace(stats, q01=stats.q99, q99=stats.q01))
    stored = json.loads(json.dumps(Normalizer("quantile", stats).to_json()))
    stored["stats"]["max"] = [1.0]
    with pytest.raises(InputError, match="1 values of max and 4 of mean"):
        Normalizer.from_json(stored)
