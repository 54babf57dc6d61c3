"""A mixture keeps its weights at every position, and each dataset its own epochs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data.mixture import Mixture, whole_shares
from vlarge.data.order import Order


def mixture_of(weights: list[float], lengths: list[int] | None = None) -> Mixture:
    return Mixture([Order([n, n + 3], 5 + n, 4, 8) for n in lengths or range(2, 2 + len(weights))], weights)


WEIGHTS = st.lists(st.integers(1, 40).map(lambda n: n / 20), min_size=1, max_size=6)


@given(weights=WEIGHTS, start=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_counts_stay_within_one_of_weight_times_position(weights: list[float], start: int) -> None:
    mixture = mixture_of(weights)
    share = np.array(weights) / sum(weights)
    datasets = mixture.samples(0, start % 200 + 100)[:, 0]
    counts = np.cumsum(datasets[:, None] == np.arange(len(weights)), axis=0)
    assert (abs(counts - share * np.arange(1, len(datasets) + 1)[:, None]) < 1 + 1e-9).all()
    assert (abs(mixture.counts(start) - share * start) < 1 + 1e-9).all()


@given(weights=WEIGHTS, start=st.integers(0, 300), count=st.integers(0, 60))
@settings(max_examples=20, deadline=None)
def test_any_position_can_be_asked_for_directly(weights: list[float], start: int, count: int) -> None:
    mixture = mixture_of(weights)
    whole = mixture.samples(0, start + count)
    assert (mixture.samples(start, start + count) == whole[start:]).all()
    for k, order in enumerate(mixture.orders):
        own = whole[whole[:, 0] == k][:, 1:]
        assert (own == order.samples(0, len(own))).all()
        assert (mixture.positions_of(k, 0, len(own)) == np.flatnonzero(whole[:, 0] == k)).all()


def test_weights_are_exact_fractions() -> None:
    assert whole_shares([0.5, 0.3, 0.2]) == [5, 3, 2]
    assert whole_shares([2, 4]) == [1, 2]
    for weights in ([1.0, 0.0], [1.0, -1.0], []):
        with pytest.raises(InputError, match="above 0"):
            whole_shares(weights)
    with pytest.raises(InputError, match="too many digits"):
        whole_shares([1.0, 0.1234567])
