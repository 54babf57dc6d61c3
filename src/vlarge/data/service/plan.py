"""What a rank has to read, and in which order, so that no frame is decoded twice: a pure function of the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from vlarge.data.order import Order

Key = tuple[int, int, int]  # epoch (0 where samples are kept for all epochs), episode position, frame


@dataclass(frozen=True)
class Piece:
    """Frames of one episode (ascending) that one window needs: read together, they share nothing with other pieces.

    window: the position in the order where the window starts.
    """

    window: int
    epoch: int
    episode: int
    frames: tuple[int, ...]

    @property
    def keys(self) -> list[Key]:
        return [(self.epoch, self.episode, frame) for frame in self.frames]


def rank_slice(step: int, batch_size: int, rank: int, world: int) -> tuple[int, int]:
    """Positions [start, stop) that a rank has of global batch `step`, which is [step, step + 1) * batch_size."""
    return step * batch_size + rank * batch_size // world, step * batch_size + (rank + 1) * batch_size // world


def epoch_of(order: Order, position: int) -> int:
    """The epoch in a sample's key: always 0 where samples are kept, so that later epochs find them."""
    return 0 if order.is_one_window else position // order.num_frames


def plan_pieces(
    order: Order,
    batch_size: int,
    rank: int,
    world: int,
    start_step: int,
    starts_afresh: Callable[[int, np.ndarray], np.ndarray],
) -> Iterator[Piece]:
    """All that a rank has to read from `start_step` on, in the order in which it is first needed.

    starts_afresh(episode position, ascending frames [n]) says for each frame whether it is decoded without any packet
    that the frames before it need. A clip is a piece of its own, joined to its neighbour where they share packets.
    Without end; but where a window is a whole epoch, each frame is planned once for all epochs.
    """
    first, last = rank_slice(0, batch_size, rank, world)
    position = start_step * batch_size
    planned = np.zeros((0, 2), np.int64)
    while len(planned) < order.num_frames:
        window, stop = order.window(position)
        within = np.arange(position, stop) % batch_size
        needed = order.samples(position, stop)[(within >= first) & (within < last)]
        if order.is_one_window:
            needed = needed[~_contains(planned, needed, order.num_frames)]
            planned = np.concatenate([planned, needed])
        for episode, frames in _cut(needed, order.clip_frames, starts_afresh):
            yield Piece(window, epoch_of(order, position), episode, tuple(frames.tolist()))
        position = stop


def _contains(pool: np.ndarray, samples: np.ndarray, num_frames: int) -> np.ndarray:
    # Row-wise membership; an episode has at most num_frames frames.
    return np.isin(samples[:, 0] * num_frames + samples[:, 1], pool[:, 0] * num_frames + pool[:, 1])


def _cut(
    needed: np.ndarray, clip_frames: int, starts_afresh: Callable[[int, np.ndarray], np.ndarray]
) -> list[tuple[int, np.ndarray]]:
    # (episode, frames) of each piece of the samples [n, 2], by the first of its samples.
    rank = np.lexsort((needed[:, 1], needed[:, 0]))
    episodes, frames = needed[rank].T
    new_episode = np.diff(episodes, prepend=-1) != 0
    is_cut = new_episode | (np.diff(frames // clip_frames, prepend=-1) != 0)
    for members in np.split(np.arange(len(rank)), np.flatnonzero(new_episode)[1:]):
        if len(members):
            is_cut[members[1:]] &= starts_afresh(int(episodes[members[0]]), frames[members])[1:]
    pieces = [p for p in np.split(np.arange(len(rank)), np.flatnonzero(is_cut)[1:]) if len(p)]
    return [(int(episodes[p[0]]), frames[p]) for p in sorted(pieces, key=lambda p: rank[p].min())]
