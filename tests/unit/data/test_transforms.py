"""Every transform has its inverse, on ordinary data and on the dimensions real datasets have."""

import json

import numpy as np
import pytest

from vlarge.contracts import InputError
from vlarge.data.prompts import prompt_text
from vlarge.data.stats import compute
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation

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


@pytest.mark.parametrize("method", METHODS)
def test_constant_dimension_is_zero_and_comes_back(method: str) -> None:
    normalizer = Normalizer(method, compute([_awkward_rows()]))
    unseen = np.array([0.0, 9.0, 0.0, 0.0])
    assert normalizer(unseen)[1] == 0
    assert normalizer.inverse(np.full(4, 3.0))[1] == np.float32(0.3)


def test_quantile_is_openpis_formula_and_not_clipped() -> None:
    rows = np.linspace(0, 10, 101)[:, None]
    normalizer = Normalizer("quantile", compute([rows]))
    q01, q99 = np.quantile(rows, [0.01, 0.99])
    expected = (rows - q01) / (q99 - q01 + 1e-6) * 2 - 1
    np.testing.assert_allclose(normalizer(rows), expected, rtol=1e-5, atol=1e-6)
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


def _preparation() -> Preparation:
    rows = _awkward_rows()
    return Preparation(
        image_size=16,
        action_horizon=8,
        cameras=("observation.images.top", "observation.images.wrist"),
        tokenizer=ByteTokenizer(),
        state_normalizer=Normalizer("quantile", compute([rows])),
        action_normalizer=Normalizer("mean_std", compute([rows * 2])),
        max_text_tokens=200,
    )


def test_observation_resizes_present_cameras_and_writes_the_normalised_state() -> None:
    preparation = _preparation()
    images = {"other": np.zeros((8, 8, 3), np.uint8), "observation.images.wrist": np.ones((8, 8, 3), np.uint8)}
    state = _awkward_rows()[3]
    resized, prompt_ids, state_A = preparation.observation(images, state, "go")
    assert {key: image.shape for key, image in resized.items()} == {"observation.images.wrist": (16, 16, 3)}
    np.testing.assert_array_equal(state_A, preparation.state_normalizer(state))
    assert prompt_ids[1:].tolist() == ByteTokenizer().encode(prompt_text("go", state_A))


def test_preparation_survives_json() -> None:
    before = _preparation()
    after = Preparation.from_json(json.loads(json.dumps(before.to_json())))
    assert after.to_json() == before.to_json()
    rows = _awkward_rows() * 2
    np.testing.assert_array_equal(after.actions(rows), before.actions(rows))
    np.testing.assert_allclose(after.actions_inverse(after.actions(rows)), rows, rtol=1e-4, atol=1e-5)


def test_incomplete_preparation_names_what_is_missing() -> None:
    data = _preparation().to_json()
    del data["action_normalizer"]
    with pytest.raises(InputError, match="action_normalizer"):
        Preparation.from_json(data)
