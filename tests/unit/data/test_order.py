"""The order of samples is a pure function, and each epoch has every frame once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data.order import Order, permutation

ORDERS = st.builds(
    Order,
    st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(sum),
    seed=st.integers(-3, 2**40),
    clip_frames=st.integers(1, 20),
    window_clips=st.integers(1, 12),
)


@given(order=ORDERS, epoch=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_each_epoch_has_every_frame_once(order: Order, epoch: int) -> None:
    n = order.num_frames
    samples = [tuple(s) for s in order.samples(epoch * n, (epoch + 1) * n).tolist()]
    frames = {(e, f) for e, length in enumerate(order._lengths.tolist()) for f in range(length)}
    assert len(samples) == n
    assert set(samples) == frames


@given(order=ORDERS, start=st.integers(0, 300), count=st.integers(0, 150))
@settings(max_examples=60, deadline=None)
def test_any_position_can_be_asked_for_directly(order: Order, start: int, count: int) -> None:
    together = order.samples(start, start + count)
    one_by_one = [order.sample(position) for position in range(start, start + count)]
    assert [tuple(s) for s in together.tolist()] == one_by_one


@given(order=ORDERS, position=st.integers(0, 500))
@settings(max_examples=60, deadline=None)
def test_windows_tile_the_epoch_and_are_bounded(order: Order, position: int) -> None:
    start, stop = order.window(position)
    assert start <= position < stop
    assert stop - start <= order.max_window_frames
    assert start // order.num_frames == (stop - 1) // order.num_frames
    assert order.window(stop)[0] == stop
    assert order.is_one_window == (order.window(0) == (0, order.num_frames))


def test_seed_and_epoch_change_the_order_and_nothing_else_does() -> None:
    order, again, other = (Order([50, 30], seed, 4, 5) for seed in (1, 1, 2))
    first, second = order.samples(0, 80), order.samples(80, 160)
    assert (again.samples(0, 80) == first).all()
    assert (other.samples(0, 80) != first).any()
    assert (second != first).any()


def test_the_order_is_the_same_for_ever() -> None:
    # A run resumed by another version must find its place: these numbers never change.
    assert permutation(8, 0, 1).tolist() == [0, 6, 7, 4, 3, 2, 1, 5]
    assert Order([5, 3], 7, 2, 2).samples(0, 8).tolist() == [
        [1, 0],
        [1, 1],
        [0, 3],
        [0, 2],
        [1, 2],
        [0, 1],
        [0, 0],
        [0, 4],
    ]


def test_neighbours_come_from_many_clips() -> None:
    order = Order([1000] * 10, 0, 16, 256)
    first = order.samples(0, 256)
    assert len({(e, f // 16) for e, f in first.tolist()}) > 140  # 256 draws from 256 clips: about 162 differ


def test_no_frame_is_refused() -> None:
    with pytest.raises(InputError, match="no episode"):
        Order([], 0)
    with pytest.raises(InputError, match="clip_frames"):
        Order([3], 0, clip_frames=0)


def test_large_datasets_are_quick_to_order() -> None:
    order = Order(np.full(20_000, 300), 0)
    assert order.samples(5_000_000, 5_000_032).shape == (32, 2)
