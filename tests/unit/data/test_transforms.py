"""What stands between a dataset and a model prepares observations, and survives a checkpoint."""

import json
from dataclasses import replace

import numpy as np
import pytest

from vlarge.contracts import InputError
from vlarge.data.prompts import prompt_text
from vlarge.data.stats import compute
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation


def _awkward_rows() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    rows[:, 1] = 0.3  # constant
    rows[:, 2] = 0  # rare: both quantiles are 0
    rows[500:502, 2] = 5, -3
    rows[:, 3] *= 1e-3
    return rows


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


def test_images_are_padded_as_the_preparation_says() -> None:
    wide = {"observation.images.top": np.full((4, 8, 3), 9, np.uint8)}
    for padding, first in (("centre", 4), ("corner", 8)):
        preparation = Preparation.from_json(replace(_preparation(), padding=padding).to_json())
        (image,) = preparation.observation(wide, _awkward_rows()[3], "go")[0].values()
        assert image[:, 0, 0].nonzero()[0].tolist() == list(range(first, first + 8))
    with pytest.raises(InputError, match="padding is 'top'; known are centre, corner"):
        replace(preparation, padding="top")


def test_incomplete_preparation_names_what_is_missing() -> None:
    data = _preparation().to_json()
    del data["action_normalizer"]
    with pytest.raises(InputError, match="action_normalizer"):
        Preparation.from_json(data)


def test_stored_statistics_that_are_broken_are_named() -> None:
    data = _preparation().to_json()
    data["action_normalizer"]["stats"]["q01"][1] = float("nan")
    with pytest.raises(InputError, match="the stored action_normalizer: the statistic q01 of dimension 1 is nan"):
        Preparation.from_json(json.loads(json.dumps(data)))


@pytest.mark.parametrize("change", [{"prompt": "poem"}, {"tokenizer": {"kind": "pickle"}}])
def test_a_stored_prompt_or_tokenizer_unknown_here_is_named(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"'poem'; known are|'pickle' is unknown"):
        Preparation.from_json(_preparation().to_json() | change)
