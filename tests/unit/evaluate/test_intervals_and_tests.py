"""Statistics against scipy's."""

import math
from bisect import bisect_left

import numpy as np
import pytest
from scipy.special import betaln
from scipy.stats import beta, binomtest

from vlarge.contracts import InputError
from vlarge.evaluate.stats import clopper_pearson, evidence, holm, mcnemar, wilson

COUNTS = [(0, 1), (1, 1), (0, 10), (9, 10), (10, 10), (45, 50), (97, 150), (450, 500), (1, 5000), (4321, 5000)]


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.3])
@pytest.mark.parametrize(("num_success", "num_episodes"), COUNTS)
def test_intervals(num_success, num_episodes, alpha):
    test = binomtest(num_success, num_episodes)
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        theirs = test.proportion_ci(1 - alpha, method=method)
        assert ours(num_success, num_episodes, alpha) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 1), (5, 0), (8, 3), (3, 8), (7, 7), (700, 640)])
def test_mcnemar(first, second):
    total = first + second
    expected = [binomtest(first, total, 0.5, side).pvalue if total else 1.0 for side in ("greater", "two-sided")]
    assert mcnemar(first, second, one_sided=True) == pytest.approx(expected[0], abs=1e-9)
    assert mcnemar(first, second, one_sided=False) == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 1), (5, 0), (10, 4), (2, 9), (60, 30), (200, 260)])
def test_evidence_is_the_integral_over_all_better_rates(first, second):
    mass = 2 ** (first + second + 1) * np.exp(betaln(first + 1, second + 1))
    assert evidence(first, second) == pytest.approx(mass * beta.sf(0.5, first + 1, second + 1), rel=1e-9)


def test_evidence_is_a_fair_bet_without_a_difference():
    for first in range(12):
        for second in range(12):
            later = (evidence(first + 1, second) + evidence(first, second + 1)) / 2
            assert later == pytest.approx(evidence(first, second), rel=1e-12)
    assert evidence(5000, 0) == math.inf


def test_evidence_seldom_misleads_however_often_one_looks():
    assert 0.02 < stopped_after(400, rate=0.5)[-1] <= 0.05
    stopped = stopped_after(100, rate=0.75)
    assert stopped[-1] > 0.99
    assert np.searchsorted(stopped, 0.5) + 1 == 23  # as docs/evaluation.md says


def stopped_after(num_pairs: int, rate: float) -> np.ndarray:
    """The exact probability of evidence of 20 within 1, 2, … pairs that each fall to the first with `rate`."""
    alive, stopped = np.array([1.0]), np.zeros(num_pairs)  # alive: by how many the first has won
    for number in range(1, num_pairs + 1):
        alive = np.append(alive * (1 - rate), 0) + np.append(0, alive * rate)
        enough = crossing(number)
        stopped[number - 1] = alive[enough:].sum()
        alive[enough:] = 0
    return stopped.cumsum()


def crossing(num_pairs: int) -> int:
    """Of so many discordant pairs, how many the first must win for evidence of 20."""
    wins = range(num_pairs // 2, num_pairs + 1)
    return bisect_left(wins, 20, key=lambda won: evidence(won, num_pairs - won)) + num_pairs // 2


def test_holm():
    p_values = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert holm(p_values) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({"one": 0.4}) == {"one": 0.4}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_no_episode_tells_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("arguments", [(-1, 5), (6, 5), (1, 5, 0.0), (1, 5, 1.0)])
def test_impossible_counts_are_refused(arguments):
    for interval in (wilson, clopper_pearson):
        with pytest.raises(InputError):
            interval(*arguments)
    with pytest.raises(InputError):
        mcnemar(-1, 0, one_sided=True)
