"""Statistics are those of all rows together, whatever the pieces they came in."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data import stats


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0),
    offset=st.sampled_from([0.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_pieces_equal_the_whole(lengths: list[int], offset: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [(rng.normal(size=(n, 3)) * [1, 10, 0.01] + offset).astype(np.float32) for n in lengths]
    whole = np.concatenate(pieces).astype(np.float64)
    result = stats.compute(pieces)
    assert result.count == len(whole)
    np.testing.assert_array_equal(result.min, whole.min(0))
    np.testing.assert_array_equal(result.max, whole.max(0))
    np.testing.assert_allclose(result.mean, whole.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.std, whole.std(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.q01, np.quantile(whole, 0.01, axis=0), rtol=1e-12)
    np.testing.assert_allclose(result.q99, np.quantile(whole, 0.99, axis=0), rtol=1e-12)


def test_json_round_trip_is_exact() -> None:
    before = stats.compute([np.random.default_rng(0).normal(size=(50, 4)) / 3])
    after = stats.FeatureStats.from_json(json.loads(json.dumps(before.to_json())))
    for name in ("min", "max", "mean", "std", "q01", "q99"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert after.count == 50


def test_memory_for_quantiles_is_bounded_and_rows_stay_evenly_spaced() -> None:
    accumulator = stats.Accumulator(max_quantile_bytes=1000)
    values = np.arange(1000, dtype=np.float32)[:, None]
    for start in range(0, 1000, 37):
        accumulator.add(values[start : start + 37])
    kept = np.concatenate(accumulator._rows)[:, 0]
    assert kept.nbytes <= 1000
    np.testing.assert_array_equal(kept, np.arange(0, 1000, 4))
    assert accumulator.result().max == 999
    assert accumulator.quantiles([0.5])[0, 0] == pytest.approx(500, abs=5)


def test_nothing_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no episode"):
        stats.compute([])


def test_pixel_histogram_equals_numpy() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 3)).astype(np.uint8)
    images[..., 1] //= 5
    first, second = stats.PixelHistogram(), stats.PixelHistogram()
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


@dataclass
class _Dataset:
    tables: list[SimpleNamespace]
    root: str = "a/dataset"

    @property
    def episodes(self) -> tuple[SimpleNamespace, ...]:
        return tuple(SimpleNamespace(index=10 + i) for i in range(len(self.tables)))

    def read_table(self, episode: SimpleNamespace) -> SimpleNamespace:
        return self.tables[episode.index - 10]


def _table(length: int) -> SimpleNamespace:
    rng = np.random.default_rng(length)
    return SimpleNamespace(
        state_TA=rng.normal(size=(length, 3)).astype(np.float32), action_TA=np.full((length, 2), 7, np.float32)
    )


def test_dataset_stats_cover_state_and_action() -> None:
    result = stats.dataset_stats(_Dataset([_table(5), _table(8)]))
    assert set(result) == {STATE, ACTION}
    assert result[STATE].count == 13
    np.testing.assert_array_equal(result[ACTION].mean, [7, 7])
    np.testing.assert_array_equal(result[ACTION].std, [0, 0])


def test_nan_names_episode_and_frame() -> None:
    tables = [_table(5), _table(8)]
    tables[1].action_TA[6, 1] = np.nan
    with pytest.raises(InputError, match="action, episode 11 frame 6"):
        stats.dataset_stats(_Dataset(tables))
