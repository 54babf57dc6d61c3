"""Statistics are those of all rows together, whatever the pieces they came in."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data import accumulate
from vlarge.data.accumulate import Accumulator, FeatureStats, PixelHistogram, compute

LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)


def accumulated(pieces: list[np.ndarray], max_bins: int = accumulate.MAX_BINS) -> Accumulator:
    """As many accumulators as pieces, merged in order."""
    whole = Accumulator(max_bins)
    for piece in pieces:
        part = Accumulator(max_bins)
        part.add(piece)
        whole.merge(part)
    return whole


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0),
    offset=st.sampled_from([0.0, 1e4]),
    seed=st.integers(0, 100),
    max_bins=st.sampled_from([2**17, 500, 20]),
)
def test_pieces_equal_the_whole(lengths: list[int], offset: float, seed: int, max_bins: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [(rng.normal(size=(n, 3)) * [1, 10, 0.01] + offset).astype(np.float32) for n in lengths]
    whole = np.concatenate(pieces).astype(np.float64)
    found = accumulated(pieces, max_bins)
    result = found.result()
    assert result.count == len(whole)
    np.testing.assert_array_equal(result.min, whole.min(0))
    np.testing.assert_array_equal(result.max, whole.max(0))
    np.testing.assert_allclose(result.mean, whole.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.std, whole.std(0), rtol=1e-9, atol=1e-12)
    off = np.abs(found.quantiles(LEVELS) - np.quantile(whole, LEVELS, axis=0))
    assert (off <= found.quantile_errors(LEVELS) + (max_bins < len(whole)) * 1e-12 * np.abs(whole).max(0)).all()
    assert max_bins < len(whole) or not off.any()


def test_quantiles_depend_on_no_order_of_pieces() -> None:
    rng = np.random.default_rng(0)
    pieces = [rng.normal(size=(n, 2)).astype(np.float32) for n in (1, 3, 700, 20, 400, 2)]
    forth, back = accumulated(pieces, max_bins=64), accumulated(pieces[::-1], max_bins=64)
    assert forth.quantile_errors(LEVELS).any()
    np.testing.assert_array_equal(forth.quantiles(LEVELS), back.quantiles(LEVELS))
    np.testing.assert_allclose(forth.std, back.std, rtol=1e-14)


def test_a_merged_part_stays_as_it_is_and_may_be_exact_or_not() -> None:
    rng = np.random.default_rng(1)
    few, many = rng.normal(size=(10, 2)), rng.normal(size=(900, 2)) + 5
    parts = [accumulated([few], 64), accumulated([many], 64)]
    before = [part.result().to_json() for part in parts]
    whole = Accumulator(64)
    for part in (*parts, Accumulator(64)):
        whole.merge(part)
    assert [part.result().to_json() for part in parts] == before
    np.testing.assert_array_equal(whole.quantiles(LEVELS), accumulated([many, few], 64).quantiles(LEVELS))
    assert whole.count == 910


def test_two_skewed_episodes_together() -> None:
    rng = np.random.default_rng(2)
    rows = [rng.gamma(0.5, 1, (300, 1)), rng.gamma(2, 10, (30, 1)), rng.normal(size=(1, 1))]
    result = compute(rows)
    assert result.q99[0] == np.quantile(np.concatenate(rows), 0.99)
    assert result.q01[0] == np.quantile(np.concatenate(rows), 0.01)


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_few_rows(num_rows: int) -> None:
    rows = np.arange(num_rows * 2.0).reshape(num_rows, 2)
    result = compute([rows])
    np.testing.assert_array_equal(result.std, rows.std(0))
    np.testing.assert_array_equal(result.q99, np.quantile(rows, 0.99, axis=0))


def test_a_large_offset_costs_no_digits() -> None:
    noise = np.random.default_rng(3).normal(size=(100_000, 1)) * 1e-3
    rows = 1e9 + noise
    result = accumulated(np.array_split(rows, 50)).result()
    np.testing.assert_allclose(result.std, (rows - 1e9).std(0), rtol=1e-6)
    np.testing.assert_allclose(result.mean - 1e9, (rows - 1e9).mean(0), atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.3, -2.7, 1e9 + 0.1])
def test_a_constant_has_no_spread_and_its_own_mean(value: float) -> None:
    result = accumulated([np.full((n, 1), value) for n in (3, 1000, 17, 401)]).result()
    for name in ("min", "max", "mean", "q01", "q99"):
        assert getattr(result, name)[0] == value
    assert result.std[0] == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.float16, np.float32, np.bool_])
def test_any_type_of_number(dtype: type) -> None:
    rows = (np.random.default_rng(4).random((500, 2)) * (1 if dtype is np.bool_ else 120) + 0.5).astype(dtype)
    if dtype is np.uint8:
        rows[:] = 255  # a white image: squares do not fit the type
        rows[0] = 254
    result = accumulated([rows[:200], rows[200:]]).result()
    values = rows.astype(np.float64)
    np.testing.assert_allclose(result.mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result.std, values.std(0), rtol=1e-9)
    np.testing.assert_array_equal(result.q01, np.quantile(values, 0.01, axis=0))


def test_memory_is_bounded_whatever_the_number_of_rows() -> None:
    rng = np.random.default_rng(5)
    max_bins, dim = 4096, 2
    whole = Accumulator(max_bins)
    tracemalloc.start()
    for _ in range(300):
        whole.add(rng.normal(size=(2000, dim)).astype(np.float32))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert whole.count == 600_000
    bound = dim * max_bins * (16 + 4 * accumulate.PENDING_PER_BIN)
    assert held < 1.2 * bound
    assert peak < 6 * bound
    assert len(whole._sketches[0].keys) <= max_bins


def test_a_view_of_a_file_is_not_held() -> None:
    rows = np.zeros((10, 1))
    whole = Accumulator()
    whole.add(rows)
    rows[:] = 7
    assert whole.result().q99[0] == 0


def test_datasets_of_one_embodiment_merge() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(50, 2)), rng.normal(size=(80, 2)) * 3
    merged = accumulate.merge([accumulated([first]), accumulated([second]), Accumulator()]).result()
    assert merged.count == 130
    np.testing.assert_array_equal(merged.q99, np.quantile(np.concatenate([first, second]), 0.99, axis=0))
    with pytest.raises(InputError, match="2 and 3 dimensions"):
        accumulate.merge([accumulated([first]), accumulated([np.zeros((4, 3))])])


def test_rows_without_a_dimension() -> None:
    found = accumulated([np.zeros((5, 0), np.float32)] * 3, max_bins=4)
    assert found.result().count == 15
    assert found.quantiles(LEVELS).shape == (5, 0)


def test_json_round_trip_is_exact() -> None:
    before = compute([np.random.default_rng(0).normal(size=(50, 4)) / 3])
    after = FeatureStats.from_json(json.loads(json.dumps(before.to_json())))
    for name in ("min", "max", "mean", "std", "q01", "q99"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert after.count == 50


def test_nothing_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no episode"):
        compute([])


def test_pixel_histogram_equals_numpy() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 3)).astype(np.uint8)
    images[..., 1] //= 5
    first, second = PixelHistogram(), PixelHistogram()
    first.add(images[:3])
    second.add(images[3:])
    first.merge(second)
    levels = (0.01, 0.5, 0.77)
    summary = first.summary(levels)
    pixels = images.reshape(-1, 3) / 255
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(summary[name], getattr(pixels, name)(0), rtol=1e-12)
    quantiles = [summary[name] for name in ("q01", "q50", "q77")]
    np.testing.assert_allclose(quantiles, np.quantile(pixels, levels, axis=0), rtol=1e-12)
