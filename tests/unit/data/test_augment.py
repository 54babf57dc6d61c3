"""Draws of the augmentation: a function of seed, epoch, sample and camera, within openpi's ranges."""

import numpy as np

from vlarge.contracts import SampleId
from vlarge.data.transforms.augment import draw

TOP, WRIST = "observation.images.top", "observation.images.left_wrist"


def test_a_draw_depends_on_its_key_only() -> None:
    sample = SampleId(0, 3, 14)
    both = draw(7, 1, sample, (TOP, WRIST))
    assert both.shape == (2, 7)
    assert both.dtype == np.float32
    np.random.default_rng().random(3)  # nobody's generator matters
    np.testing.assert_array_equal(draw(7, 1, sample, (WRIST,)), both[1:])
    np.testing.assert_array_equal(draw(7, 1, (0, 3, 14), {TOP: None, WRIST: None}), both)  # type: ignore[arg-type]
    others = [draw(8, 1, sample, (TOP,)), draw(7, 2, sample, (TOP,)), draw(7, 1, SampleId(0, 3, 15), (TOP,)),
              draw(7, 1, SampleId(0, 4, 14), (TOP,)), draw(7, 1, SampleId(1, 3, 14), (TOP,))]  # fmt: skip
    assert len({row.tobytes() for row in [both[:1], *others]}) == 6


def test_the_law_does_not_change() -> None:
    """Runs that are resumed under a later version must see the pictures of the earlier one."""
    expected = [[0.9489196, 0.04529468, 0.04424196, 0.02003432, 1.293361, 1.157773, 1.090749]]
    np.testing.assert_allclose(draw(0, 0, SampleId(0, 0, 0), (TOP,)), expected, rtol=1e-6, atol=1e-7)


def test_numpy_integers_draw_as_python_integers() -> None:
    sample = SampleId(*np.array([1, 2, 3]))
    np.testing.assert_array_equal(draw(0, np.int64(4), sample, (TOP,)), draw(0, 4, SampleId(1, 2, 3), (TOP,)))  # type: ignore[arg-type]


def test_ranges_are_openpis_and_filled() -> None:
    draws = np.concatenate([draw(0, 0, SampleId(0, 0, frame), (TOP,)) for frame in range(4000)])
    scale, angle = np.hypot(*draws[:, :2].T), np.degrees(np.arctan2(*draws[:, 1::-1].T))
    np.testing.assert_allclose(scale, 0.95, rtol=1e-6)
    columns = [angle, *draws[:, 2:].T]
    ranges = [(-5, 5), (-0.05, 0.05), (-0.05, 0.05), (0.7, 1.3), (0.6, 1.4), (0.5, 1.5)]
    for values, (low, high) in zip(columns, ranges, strict=True):
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        np.testing.assert_allclose(values.mean(), (low + high) / 2, atol=0.02 * (high - low))
    correlations = np.corrcoef(columns) - np.eye(6)
    assert np.abs(correlations).max() < 0.08


def test_a_wrist_camera_keeps_its_geometry() -> None:
    draws = np.concatenate([draw(0, 0, SampleId(0, 0, frame), (WRIST,)) for frame in range(20)])
    np.testing.assert_array_equal(draws[:, :4], np.tile([1, 0, 0, 0], (20, 1)))
    assert draws[:, 4:].std(0).min() > 0.05
