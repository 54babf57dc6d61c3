"""Which frames of a video are whose: claims of several episodes on one video, judged against each other.

No two episodes share a frame, and a recorder appends one episode after the other. So where lengths add up to the video,
an episode belongs where the lengths before it add up to, and a claim on other frames is wrong. Where they do not add
up, what metadata says about the ends of episodes tells who has too few or too many frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

ELSEWHERE = -1  # an impossible start: metadata gives no usable one


@dataclass(frozen=True)
class Span:
    """The frames [first, first + length) of a video that an episode says are its own.

    end: where metadata says that the episode's part of the video ends; None where it does not say.
    """

    episode: int
    first: int
    length: int
    end: int | None = None

    @property
    def stop(self) -> int:
        return self.first + self.length


@dataclass(frozen=True)
class Judgement:
    """kind: "" for a span that may be believed. surplus: frames of the video between its end and the next one's."""

    kind: str = ""
    surplus: int = 0


def judge(
    spans: Sequence[Span], num_frames: int, lengths: Mapping[int, int], doubtful: Collection[int] = ()
) -> dict[int, Judgement]:
    """A judgement for each episode of one video of `num_frames` frames.

    lengths: frames of all episodes known, those of other videos too. doubtful: episodes whose number may be wrong.
    """
    if sum(s.length for s in spans) == num_frames:
        return _mark(spans, "wrong_from_timestamp", _out_of_place(spans, doubtful))
    chain = _covering(spans, num_frames)
    if chain:
        return _mark(spans, "wrong_from_timestamp", [s for s in spans if s not in chain])
    found = {s.episode: Judgement("wrong_from_timestamp") for s in spans if s.first < 0}
    placed = sorted((s for s in spans if s.first >= 0), key=lambda s: (s.first, s.episode))
    found |= _overlapping(placed)
    for span in placed:
        if span.stop > num_frames:
            found.setdefault(span.episode, Judgement("short_video"))
    for span, following in zip_longest(placed, placed[1:]):
        surplus = (following.first if following else num_frames) - span.stop
        is_claimed = span.end is None or span.end > span.stop
        if surplus > 0 and is_claimed:
            found.setdefault(span.episode, Judgement("", surplus))
        elif surplus > 0 and following is None and not _is_explained(surplus, span.episode, placed, lengths):
            # Frames that belong to nobody: nothing says where in the video they are.
            return _mark(spans, "long_video", spans)
    return {s.episode: found.get(s.episode, Judgement()) for s in spans}


def _mark(spans: Sequence[Span], kind: str, wrong: Collection[Span]) -> dict[int, Judgement]:
    return {s.episode: Judgement(kind if s in wrong else "") for s in spans}


def _out_of_place(spans: Sequence[Span], doubtful: Collection[int]) -> set[Span]:
    # Lengths add up to the video. Episodes lie in order of their numbers or, where that explains more, of their starts;
    # then those that changed places are wrong as well.
    orders = [sorted(spans, key=lambda s: s.episode), sorted(spans, key=lambda s: (s.first, s.episode))]
    wrong = [_misplaced(order) for order in orders]
    if len(wrong[0]) <= len(wrong[1]):
        return wrong[0]
    sure = [s for s in orders[1] if s.episode not in doubtful]
    highest = list(accumulate((s.episode for s in sure), max))
    lowest = list(accumulate((s.episode for s in reversed(sure)), min))[::-1]
    return wrong[1] | {s for s, h, low in zip(sure, highest, lowest, strict=True) if h > s.episode or low < s.episode}


def _misplaced(order: Sequence[Span]) -> set[Span]:
    starts = accumulate((s.length for s in order), initial=0)
    return {span for span, start in zip(order, starts, strict=False) if span.first != start}


def _covering(spans: Sequence[Span], num_frames: int) -> set[Span]:
    # Spans that follow one another, in order of their numbers, from the video's first frame to its last: those in every
    # such chain; empty when there is none.
    by_first: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_first[span.first].append(span)
    ordered = sorted(spans, key=lambda s: (s.first, s.episode))

    def following(span: Span) -> list[Span]:
        return [n for n in by_first[span.stop] if n.episode > span.episode]

    ways_on: dict[Span, int] = {}
    for span in reversed(ordered):
        ways_on[span] = 1 if span.stop == num_frames else sum(ways_on.get(n, 0) for n in following(span))
    ways_to: dict[Span, int] = defaultdict(int, dict.fromkeys(by_first[0], 1))
    for span in ordered:
        for after in following(span):
            ways_to[after] += ways_to[span]
    total = sum(ways_on[s] for s in by_first[0])
    return {s for s in spans if total and ways_to[s] * ways_on[s] == total}


def _overlapping(placed: Sequence[Span]) -> dict[int, Judgement]:
    # Of two that share frames, blame the one that metadata itself ends early, or else the one that is not where the
    # lengths before add up to. When everything after is moved as well, the left one may be short: then both.
    order = sorted(placed, key=lambda s: s.episode)
    starts = accumulate((s.length for s in order), initial=0)
    moved = {span: span.first - start for span, start in zip(order, starts, strict=False)}
    found: dict[int, Judgement] = {}
    furthest = placed[0] if placed else None
    for left, right in pairwise(placed):
        assert furthest is not None
        left = max(left, furthest, key=lambda s: s.stop)
        furthest = left
        if left.stop <= right.first:
            continue
        if left.end is not None and left.first < left.end <= right.first:
            found.setdefault(left.episode, Judgement("short_video"))
            continue
        blamed = {s for s in (left, right) if moved[s]} or {left, right}
        if blamed == {right} and all(moved[s] == moved[right] for s in order if s.episode > right.episode):
            blamed = {left, right}
        for span in blamed:
            found.setdefault(span.episode, Judgement("wrong_from_timestamp"))
    return found


def _is_explained(surplus: int, episode: int, placed: Sequence[Span], lengths: Mapping[int, int]) -> bool:
    # Whether the frames are just those of the next episodes, which metadata does not list or puts elsewhere.
    here = {s.episode for s in placed}
    for number in range(episode + 1, episode + 1 + surplus):
        if number in here or number not in lengths or surplus <= 0:
            break
        surplus -= lengths[number]
    return surplus == 0
