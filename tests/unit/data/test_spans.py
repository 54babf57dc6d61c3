"""Whose frames of a video are whose, without any video."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vlarge.data.check import usable_spans
from vlarge.data.spans import ELSEWHERE, Span, judge

GOOD = [Span(0, 0, 15, 15), Span(1, 15, 13, 28), Span(2, 28, 12, 40)]


def wrong(spans: list[Span], num_frames: int = 40, lengths: dict[int, int] | None = None) -> dict[int, str]:
    return {e: j.kind for e, j in judge(spans, num_frames, lengths or {}).items() if j.kind}


def surplus(spans: list[Span], num_frames: int) -> dict[int, int]:
    return {e: j.surplus for e, j in judge(spans, num_frames, {}).items() if j.surplus}


def test_who_is_to_blame_when_two_episodes_share_frames() -> None:
    assert wrong(GOOD) == {}
    assert wrong([GOOD[0], Span(1, 18, 13), GOOD[2]]) == {1: "wrong_from_timestamp"}
    assert wrong([GOOD[0], Span(1, 10, 13), GOOD[2]]) == {1: "wrong_from_timestamp"}
    assert wrong([GOOD[0], Span(1, ELSEWHERE, 13), GOOD[2]]) == {1: "wrong_from_timestamp"}


def test_an_episode_that_is_not_listed_leaves_its_frames() -> None:
    assert wrong([GOOD[0], GOOD[2]]) == {}
    assert wrong(GOOD[:2], lengths={2: 12}) == {}
    assert wrong(GOOD[:2], lengths={2: 11}) == {0: "long_video", 1: "long_video"}


def test_places_that_were_swapped() -> None:
    both = {0: "wrong_from_timestamp", 1: "wrong_from_timestamp"}
    assert wrong([Span(0, 13, 15), Span(1, 0, 13), GOOD[2]]) == both
    assert wrong([Span(0, 10, 10), Span(1, 0, 10)], 20) == both
    assert set(wrong([Span(0, 20, 10), Span(1, 10, 10), Span(2, 0, 10)], 30)) >= {0, 2}


def test_a_stranger_in_a_full_video_is_the_one_who_is_wrong() -> None:
    assert wrong([*GOOD, Span(7, 0, 10)]) == {7: "wrong_from_timestamp"}
    assert wrong([*GOOD, Span(7, 28, 12)]) == {2: "wrong_from_timestamp", 7: "wrong_from_timestamp"}


def test_too_few_frames_are_those_of_the_episode_that_ends_early() -> None:
    assert wrong(GOOD, 37) == {2: "short_video"}
    assert wrong([GOOD[0], Span(1, 15, 13, 27), Span(2, 27, 12, 39)], 39) == {1: "short_video"}
    # Metadata does not say where episode 1 ends: either it is short or the next one begins too early.
    assert set(wrong([GOOD[0], Span(1, 15, 13), Span(2, 27, 12)], 39)) == {1, 2}


def test_too_many_frames_are_those_of_the_episode_that_says_so() -> None:
    longer = [GOOD[0], Span(1, 15, 13, 30), Span(2, 30, 12, 42)]
    assert wrong(longer, 42) == {}
    assert surplus(longer, 42) == {1: 2}
    assert surplus([Span(0, 0, 10)], 13) == {0: 3}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_one_moved_episode_is_found_wherever_it_is(lengths: list[int], data: st.DataObject) -> None:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    spans = [Span(i, starts[i], lengths[i]) for i in range(len(lengths))]
    assert wrong(spans, sum(lengths)) == {}
    moved = data.draw(st.integers(0, len(lengths) - 1))
    shift = data.draw(st.integers(-9, 9).filter(lambda n: n != 0 and starts[moved] + n >= 0))
    spans[moved] = Span(moved, starts[moved] + shift, lengths[moved])
    assert moved in wrong(spans, sum(lengths))


@given(st.integers(0, 20), st.sets(st.integers(0, 19)), st.integers(1, 8))
def test_usable_spans_touch_no_bad_row(length: int, bad: set[int], horizon: int) -> None:
    bad = {row for row in bad if row < length}
    good = [t for t in range(length) if not bad & set(range(t, min(t + horizon, length)))]
    spans = usable_spans(length, sorted(bad), horizon)
    assert [t for first, stop in spans for t in range(first, stop)] == good
    assert all(a[1] < b[0] for a, b in pairwise(spans))  # none is empty, none touches the next
