"""How a global batch is shared out: equal work, within budget, cheap to read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data.pack import even_batches, micro_batches, share_out

COSTS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)


@given(costs=COSTS, homes=st.integers(1, 30), num_nodes=st.integers(1, 5), ranks_per_node=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_every_rank_has_about_the_same_work(costs: np.ndarray, homes: int, num_nodes: int, ranks_per_node: int) -> None:
    ranks = share_out(costs, np.arange(len(costs)) % homes, num_nodes, ranks_per_node)
    num_ranks = num_nodes * ranks_per_node
    if len(costs) >= num_ranks:
        assert np.bincount(ranks, minlength=num_ranks).min() >= 1
    nodes = np.bincount(ranks // ranks_per_node, costs, num_nodes)
    assert nodes.max() - nodes.min() <= 2 * costs.max() or len(costs) < 2 * num_ranks
    work = np.bincount(ranks, costs, num_nodes * ranks_per_node).reshape(num_nodes, ranks_per_node)
    assert (work.max(1) - work.min(1) <= costs.max()).all()


@pytest.mark.parametrize(("costs", "num_nodes", "ranks_per_node"), [([9] * 7 + [7] * 9, 2, 8), ([3, 1, 1], 3, 1)])
def test_every_rank_has_a_sample_where_few_are_heavy(costs: list[int], num_nodes: int, ranks_per_node: int) -> None:
    for homes in (np.arange(len(costs)), np.array(costs), np.zeros(len(costs), np.int64)):
        ranks = share_out(np.array(costs), homes, num_nodes, ranks_per_node)
        assert np.bincount(ranks, minlength=num_nodes * ranks_per_node).min() == 1


def test_samples_that_are_read_together_share_a_node() -> None:
    homes = np.repeat(np.arange(512), 4)
    ranks = share_out(np.full(2048, 100), homes, 4, 8)
    nodes = (ranks // 8).reshape(512, 4)
    assert (nodes == nodes[:, :1]).all(1).mean() > 0.9
    assert np.ptp(np.bincount(ranks)) <= 1


@given(costs=COSTS, budget=st.integers(60, 200))
@settings(max_examples=100, deadline=None)
def test_micro_batches_hold_everything_once_within_the_budget(costs: np.ndarray, budget: int) -> None:
    batches = micro_batches(costs, budget)
    assert sorted(i for members in batches for i in members) == list(range(len(costs)))
    assert all(costs[members].sum() <= budget for members in batches)
    # First-fit decreasing needs at most 11/9 of the least possible number, and one.
    assert len(batches) <= 11 / 9 * max(1, -(-costs.sum() // budget)) * 2 + 1


@given(costs=COSTS, count=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_even_batches_hold_everything_once_and_differ_by_a_sample_at_most(costs: np.ndarray, count: int) -> None:
    batches = even_batches(costs, count)
    assert len(batches) == count
    assert sorted(i for members in batches for i in members) == list(range(len(costs)))
    work = [int(costs[members].sum()) for members in batches]
    assert max(work) - min(work) <= costs.max()


def test_a_sample_beyond_the_budget_is_refused() -> None:
    assert micro_batches(np.array([5, 6]), 0) == [[0, 1]]
    with pytest.raises(InputError, match="is 5, and a sample has 6 tokens: make it 6 or more"):
        micro_batches(np.array([5, 6]), 5)
