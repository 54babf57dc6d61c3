"""Which sample stands at which position: a pure function of (seed, episode lengths, shuffle settings, position).

Episodes are cut into clips. In each epoch the clips are permuted, the permuted clips are cut into windows of a fixed
number of clips, and the frames of a window are permuted in turn. So a stream that holds one window of decoded frames
serves every position in order, every frame stands exactly once in an epoch, and any position can be asked for directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from vlarge.contracts import InputError

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def permutation(n: int, *key: int) -> np.ndarray:
    """int64 [n]: the permutation that belongs to `key`. By SplitMix64: no library's version changes it."""
    state = np.zeros(1, np.uint64)
    for part in key:
        state = _mix(state ^ np.uint64(part % 2**64))
    return np.argsort(_mix(state + np.arange(n, dtype=np.uint64) * _STEP), kind="stable")


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


class Order:
    """Positions 0, 1, 2, ... of an endless training run over episodes of these lengths (see the module).

    A sample is (episode position in `lengths`, frame). Memory: a few integers per clip.
    """

    def __init__(self, lengths: Sequence[int], seed: int, clip_frames: int = 16, window_clips: int = 256) -> None:
        if clip_frames < 1 or window_clips < 1:
            raise InputError(
                f"data.clip_frames = {clip_frames} and data.window_clips = {window_clips} must be at least 1"
            )
        self._lengths = np.asarray(lengths, np.int64)
        self.seed = seed
        self.clip_frames = clip_frames
        self.window_clips = window_clips
        self.num_frames = int(self._lengths.sum())
        if not self.num_frames:
            raise InputError("no episode to train on: there is no frame to put in order")
        clips_per_episode = -(-self._lengths // clip_frames)
        self._clip_episode = np.repeat(np.arange(len(self._lengths)), clips_per_episode)
        first_clip = np.cumsum(clips_per_episode) - clips_per_episode
        self._clip_start = (np.arange(len(self._clip_episode)) - first_clip[self._clip_episode]) * clip_frames
        self._clip_length = np.minimum(clip_frames, self._lengths[self._clip_episode] - self._clip_start)
        # A batch may lie across an epoch's end, and decoding runs ahead of it.
        self._epoch = lru_cache(maxsize=3)(self._make_epoch)
        self._window = lru_cache(maxsize=4)(self._make_window)

    @property
    def max_window_frames(self) -> int:
        """No window has more frames."""
        return min(self.num_frames, self.window_clips * self.clip_frames)

    @property
    def is_one_window(self) -> bool:
        """Whether a window is a whole epoch."""
        return len(self._clip_episode) <= self.window_clips

    def sample(self, position: int) -> tuple[int, int]:
        """(episode position, frame) at a position."""
        episode, frame = self.samples(position, position + 1)[0]
        return int(episode), int(frame)

    def samples(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start, 2] of (episode position, frame) at positions [start, stop)."""
        parts: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
        while start < stop:
            first, last = self.window(start)
            parts.append(self._window(first)[start - first : stop - first])
            start = last
        return np.concatenate(parts)

    def window(self, position: int) -> tuple[int, int]:
        """Positions [start, stop) of the window that a position lies in."""
        epoch, within = divmod(position, self.num_frames)
        _, starts = self._epoch(epoch)
        number = int(np.searchsorted(starts, within, side="right")) - 1
        return epoch * self.num_frames + int(starts[number]), epoch * self.num_frames + int(starts[number + 1])

    def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        # The clips in this epoch's order, and where in the epoch each window starts, its end included.
        clips = permutation(len(self._clip_episode), self.seed, epoch)
        ends = np.cumsum(self._clip_length[clips])
        return clips, np.append(0, np.append(ends[self.window_clips - 1 : -1 : self.window_clips], ends[-1]))

    def _make_window(self, start: int) -> np.ndarray:
        # Every sample of the window that starts at this position.
        epoch, within = divmod(start, self.num_frames)
        clips, starts = self._epoch(epoch)
        number = int(np.searchsorted(starts, within, side="right")) - 1
        members = clips[number * self.window_clips : (number + 1) * self.window_clips]
        lengths = self._clip_length[members]
        offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        frames = np.repeat(self._clip_start[members], lengths) + offset
        samples = np.stack([np.repeat(self._clip_episode[members], lengths), frames], axis=1)
        return samples[permutation(len(samples), self.seed, epoch, number)]
