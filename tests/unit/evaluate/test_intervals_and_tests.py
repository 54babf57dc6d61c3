"""Statistics against scipy's."""

import pytest
from scipy.stats import binomtest

from vlarge.contracts import InputError
from vlarge.evaluate.stats import clopper_pearson, mcnemar, wilson

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
