"""Which sample stands at which position: a pure function of (seed, span lengths, shuffle settings, position).

Spans (usually whole episodes) are cut into clips. In each epoch the clips are permuted and dealt into windows of about
`window_samples` samples, and the samples of a window are permuted in turn. So a stream that holds one window of decoded
frames serves every position in order, every sample stands exactly once in an epoch, and any position can be asked for
directly: permutations are keyed bijections, never lists, and what is kept is a few integers per span.

Clips of one length form a class. Window w of K has the clips of a class from ⌊(w·n + φ) / K⌋ to ⌊((w + 1)·n + φ) / K⌋
of that class's permutation, n being their number and φ < K an offset of the epoch; where a window starts is then a
closed formula, and short clips (the ends of episodes) are spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from vlarge.contracts import InputError

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ROUNDS = 6


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """uint64: a hash of integers or integer arrays (SplitMix64): no library's version changes it."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        values = part.astype(np.uint64) if isinstance(part, np.ndarray) else np.uint64(part % 2**64)
        state = _scramble(state ^ values)
    return state


def _scramble(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = x + _STEP
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


class Permutation:
    """A keyed bijection of [0, n): a Feistel network over the next power of four, walked until it lands inside."""

    def __init__(self, n: int, *key: int) -> None:
        self.n = n
        self._half_bits = max(1, -(-max(n - 1, 1).bit_length() // 2))
        self._keys = [mix(*key, number) for number in range(_ROUNDS)]

    def __call__(self, i: np.ndarray) -> np.ndarray:
        """int64 like `i`: where each of these stands."""
        result = self._encrypt(i.astype(np.uint64))
        outside = np.flatnonzero(result >= self.n)
        while len(outside):
            result[outside] = self._encrypt(result[outside])
            outside = outside[result[outside] >= self.n]
        return result.astype(np.int64)

    def _encrypt(self, x: np.ndarray) -> np.ndarray:
        bits, mask = np.uint64(self._half_bits), np.uint64(2**self._half_bits - 1)
        left, right = x >> bits, x & mask
        for key in self._keys:
            left, right = right, left ^ (_scramble(right ^ key) & mask)
        return (left << bits) | right


class Order:
    """Positions 0, 1, 2, ... of an endless training run over spans of these lengths (see the module).

    A sample is (span, offset in it). window_samples = 0 makes one window of the whole epoch: a full shuffle.
    Raises InputError when there is no sample.
    """

    def __init__(
        self, lengths: Sequence[int] | np.ndarray, seed: int, clip_frames: int = 16, window_samples: int = 4096
    ) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self.seed = seed
        self.clip_frames = clip_frames
        self.num_samples = int(self._lengths.sum())
        if not self.num_samples:
            raise InputError("no episode to train on: there is no frame to put in order")
        self.num_windows = -(-self.num_samples // window_samples) if window_samples else 1
        # Each class of clips may have one more in a window than its even share.
        self.max_window_samples = -(-self.num_samples // self.num_windows) + clip_frames * (clip_frames + 1) // 2
        # Full clips are counted span by span; the rest of each span is a clip of its own, sorted by length.
        self._full_clips = np.cumsum(self._lengths // clip_frames)
        rests = self._lengths % clip_frames
        self._rest_spans = np.argsort(rests, kind="stable")[np.count_nonzero(rests == 0) :]
        counts = np.bincount(rests, minlength=clip_frames)
        counts[0] = 0
        rest_lengths = np.flatnonzero(counts)
        self._clip_lengths = np.append(rest_lengths, clip_frames)
        self._num_clips = np.append(counts[rest_lengths], self._full_clips[-1])
        self._window = lru_cache(maxsize=8)(self._make_window)

    def sample(self, position: int) -> tuple[int, int]:
        """(span, offset) at a position."""
        span, offset = self.samples(position, position + 1)[0]
        return int(span), int(offset)

    def samples(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start, 2] of (span, offset) at positions [start, stop)."""
        parts: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
        while start < stop:
            window = self._find(start)
            last = min(window.stop, stop)
            parts.append(window.samples(np.arange(start - window.start, last - window.start)))
            start = last
        return np.concatenate(parts)

    def window(self, position: int) -> tuple[int, int]:
        """Positions [start, stop) of the window that a position lies in."""
        window = self._find(position)
        return window.start, window.stop

    def _find(self, position: int) -> _Window:
        epoch, within = divmod(position, self.num_samples)
        low, high = 0, self.num_windows  # the last window that starts at or before `within`, and is not empty
        while high - low > 1:
            middle = (low + high) // 2
            if self._start(epoch, middle) <= within:
                low = middle
            else:
                high = middle
        return self._window(epoch, low)

    def _clips_before(self, epoch: int, number: int) -> np.ndarray:
        # int64 [classes]: how many clips of each class the windows before this one have.
        phase = (mix(self.seed, epoch, np.arange(len(self._num_clips))) % np.uint64(self.num_windows)).astype(np.int64)
        return (number * self._num_clips + phase) // self.num_windows

    def _start(self, epoch: int, number: int) -> int:
        return int(self._clips_before(epoch, number) @ self._clip_lengths)

    def _make_window(self, epoch: int, number: int) -> _Window:
        first, last = self._clips_before(epoch, number), self._clips_before(epoch, number + 1)
        spans, starts, lengths = [], [], []
        for k, length in enumerate(self._clip_lengths.tolist()):
            chosen = Permutation(int(self._num_clips[k]), self.seed, epoch, k)(np.arange(first[k], last[k]))
            span, start = self._place(k, chosen)
            spans.append(span)
            starts.append(start)
            lengths.append(np.full(len(span), length))
        offset = epoch * self.num_samples
        bounds = offset + int(first @ self._clip_lengths), offset + int(last @ self._clip_lengths)
        clips = np.stack([np.concatenate(spans), np.concatenate(starts), np.concatenate(lengths)])
        return _Window(*bounds, clips, Permutation(bounds[1] - bounds[0], self.seed, epoch, -1 - number))

    def _place(self, k: int, clips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # (span, first offset) of clips of a class, by their numbers in it.
        if k == len(self._clip_lengths) - 1:
            span = np.searchsorted(self._full_clips, clips, side="right")
            before = self._full_clips[span] - self._lengths[span] // self.clip_frames
            return span, (clips - before) * self.clip_frames
        span = self._rest_spans[int(self._num_clips[:k].sum()) + clips]
        return span, self._lengths[span] // self.clip_frames * self.clip_frames


class _Window:
    # Positions [start, stop). clips: int64 [3, n] of (span, first offset, length), ordered by class.

    def __init__(self, start: int, stop: int, clips: np.ndarray, shuffle: Permutation) -> None:
        self.start, self.stop = start, stop
        self._span, self._first, length = clips
        self._ends = np.cumsum(length)
        self._length = length
        self._shuffle = shuffle

    def samples(self, i: np.ndarray) -> np.ndarray:
        drawn = self._shuffle(i)
        clip = np.searchsorted(self._ends, drawn, side="right")
        offset = drawn - (self._ends[clip] - self._length[clip])
        return np.stack([self._span[clip], self._first[clip] + offset], axis=1)
