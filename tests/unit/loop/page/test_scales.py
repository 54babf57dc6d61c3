"""Domains, ticks, smoothing and thinning of the report's curves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.loop.page.scales import Scale, fit, linear_ticks, smooth, thin

FINITE = st.floats(-1e9, 1e9)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1), st.booleans())
def test_every_finite_value_has_a_place_on_the_chart(values: list[float], log: bool) -> None:
    places = fit(np.array(values), log=log).place(np.array(values))
    assert (places >= -1e-9).all()
    assert (places <= 1 + 1e-9).all()


def test_a_decade_makes_the_scale_logarithmic_where_that_is_allowed() -> None:
    assert fit(np.array([0.1, 1.0]), log=True).log
    assert not fit(np.array([0.2, 1.0]), log=True).log
    assert not fit(np.array([0.1, 1.0])).log
    assert not fit(np.array([0.0, 1.0]), log=True).log


@settings(deadline=None)
@given(FINITE, st.floats(1e-6, 1e9))
def test_linear_ticks_are_few_and_inside(low: float, span: float) -> None:
    ticks = linear_ticks(low, low + span)
    slack = 1e-6 * (abs(low) + span)
    assert 1 <= len(ticks) <= 6
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)


def test_ticks_are_round() -> None:
    assert linear_ticks(0, 700) == [0, 200, 400, 600]
    assert fit(np.array([0.05, 1.9]), log=True).ticks() == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2])
    assert Scale(1e-4, 1e4, True).ticks() == pytest.approx([1e-4, 1e-2, 1, 1e2, 1e4])


def test_smoothing_is_the_mean_around_each_step() -> None:
    values = np.array([0.0, 0.0, 9.0, 0.0, 0.0, 0.0])
    assert smooth(values, 3) == pytest.approx([0, 3, 3, 3, 0, 0])
    assert smooth(values, 5) == pytest.approx([0, 3, 1.8, 1.8, 2.25, 0])
    assert smooth(np.array([1.0, np.nan, 3.0]), 3) == pytest.approx([1, 2, 3])
    assert smooth(np.full(100, 4.0), 17) == pytest.approx(np.full(100, 4.0))


def test_thinning_keeps_every_peak() -> None:
    values = np.zeros(100_000)
    values[41_234], values[77_777] = 5.0, -5.0
    values[10] = np.nan
    kept = thin(values, 800)
    assert {0, 41_234, 77_777, 99_999} <= set(kept)
    assert len(kept) <= 802
    assert (np.diff(kept) > 0).all()
    assert len(thin(values[:500], 800)) == 500
