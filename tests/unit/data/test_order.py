"""The order of samples is a pure function, and each epoch has every sample once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data.order import Order, Permutation

ORDERS = st.builds(
    Order,
    st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(sum),
    seed=st.integers(-3, 2**40),
    clip_frames=st.integers(1, 20),
    window_samples=st.integers(0, 90),
)


@given(n=st.integers(1, 3000), key=st.integers(-5, 2**60))
@settings(max_examples=60, deadline=None)
def test_a_permutation_has_everything_once(n: int, key: int) -> None:
    assert sorted(Permutation(n, key)(np.arange(n)).tolist()) == list(range(n))


@given(order=ORDERS, epoch=st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_each_epoch_has_every_sample_once(order: Order, epoch: int) -> None:
    n = order.num_samples
    samples = [tuple(s) for s in order.samples(epoch * n, (epoch + 1) * n).tolist()]
    assert len(samples) == n
    assert set(samples) == {(s, f) for s, length in enumerate(order._lengths.tolist()) for f in range(length)}


@given(order=ORDERS, start=st.integers(0, 300), count=st.integers(0, 150))
@settings(max_examples=60, deadline=None)
def test_any_position_can_be_asked_for_directly(order: Order, start: int, count: int) -> None:
    together = order.samples(start, start + count)
    one_by_one = [order.sample(position) for position in range(start, start + count)]
    assert [tuple(s) for s in together.tolist()] == one_by_one


@given(order=ORDERS, position=st.integers(0, 500))
@settings(max_examples=60, deadline=None)
def test_windows_tile_the_epoch(order: Order, position: int) -> None:
    start, stop = order.window(position)
    assert start <= position < stop
    assert start // order.num_samples == (stop - 1) // order.num_samples
    assert order.window(stop)[0] == stop
    assert order.window(start) == (start, stop)


def test_windows_have_about_the_asked_size() -> None:
    lengths = np.random.default_rng(0).integers(40, 400, 500)
    order = Order(lengths, 1, 16, 4096)
    edges = [0]
    while edges[-1] < order.num_samples:
        edges.append(order.window(edges[-1])[1])
    sizes = np.diff(edges)
    assert len(sizes) == order.num_windows
    assert abs(sizes - order.num_samples / order.num_windows).max() < 16 * 16 / 2
    assert Order(lengths, 1, 16, 0).window(7) == (0, order.num_samples)


def test_a_full_shuffle_moves_frames_anywhere() -> None:
    order = Order([5000], 3, 16, 0)
    frames = order.samples(0, 5000)[:, 1]
    assert abs(np.corrcoef(frames, np.arange(5000))[0, 1]) < 0.06
    assert abs(np.corrcoef(frames[1:], frames[:-1])[0, 1]) < 0.06


def test_seed_and_epoch_change_the_order_and_nothing_else_does() -> None:
    order, again, other = (Order([50, 30], seed, 4, 20) for seed in (1, 1, 2))
    first, second = order.samples(0, 80), order.samples(80, 160)
    assert (again.samples(0, 80) == first).all()
    assert (other.samples(0, 80) != first).any()
    assert (second != first).any()


def test_the_order_is_the_same_for_ever() -> None:
    # A run resumed by another version must find its place: these numbers never change.
    assert Permutation(8, 0, 1)(np.arange(8)).tolist() == PERMUTED
    assert Order([5, 3], 7, 2, 4).samples(0, 8).tolist() == ORDERED


PERMUTED = [3, 7, 1, 2, 0, 5, 4, 6]
ORDERED = [[0, 4], [1, 0], [1, 1], [0, 1], [0, 2], [0, 0], [1, 2], [0, 3]]


def test_neighbours_come_from_many_clips() -> None:
    order = Order([1000] * 10, 0, 16, 4096)
    first = order.samples(0, 256)
    assert len({(e, f // 16) for e, f in first.tolist()}) > 130  # 256 draws from 213 clips: about 150 differ


def test_no_sample_is_refused() -> None:
    with pytest.raises(InputError, match="no episode"):
        Order([], 0)


def test_a_hundred_million_frames_take_a_few_integers_per_episode() -> None:
    order = Order(np.full(300_000, 333), 0)
    assert order.samples(5_000_000_000, 5_000_000_032).shape == (32, 2)
    arrays = [value for value in vars(order).values() if isinstance(value, np.ndarray)]
    assert sum(a.nbytes for a in arrays) < 10_000_000
