"""What a node has to read, in which order and where each sample goes: a pure function of the order of samples.

Whole windows are planned at a time where memory allows, so that frames which share packets are read together and
decoded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vlarge.data.frame_cache import FrameCache
from vlarge.data.index import Dataset
from vlarge.data.mixture import Mixture
from vlarge.data.pack import cost_in_tokens, equal_counts, share_out
from vlarge.data.transforms import Preparation


@dataclass(frozen=True)
class Node:
    """Which ranks of the run one service feeds: `ranks_per_node` in a row."""

    number: int = 0
    num_nodes: int = 1
    ranks_per_node: int = 1


ALONE = Node()
FINE_WINDOWS = 2  # after the first alone, the second one's first batches would wait
BLOCK_SAMPLES = 64  # looked up together: it costs as much as looking up one


@dataclass(frozen=True, eq=False)
class Part:
    """One dataset of a run. spans_S3: int64 [S, 3] of (episode position, first frame, length), what Order counts."""

    dataset: Dataset
    preparation: Preparation
    spans_S3: np.ndarray
    clip_frames: int
    image_tokens: int = 0
    cache: FrameCache | None = None
    augment: bool = False

    @property
    def camera_names(self) -> list[str]:
        """The model's names of the cameras."""
        return [self.preparation.chain.camera(key) for key in self.preparation.cameras]

    @property
    def num_images(self) -> int:
        """Images of one sample."""
        return len(self.preparation.cameras)

    def costs(self, episodes: np.ndarray, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 [n] text tokens, at most, and int64 [n] action steps of samples, from the index alone."""
        steps = self.preparation.num_steps(self.dataset.lengths[episodes] - frames)
        own, where = np.unique(episodes, return_inverse=True)
        return np.array([_text_tokens(self, e) for e in own.tolist()], np.int64)[where], steps


@lru_cache(maxsize=1 << 18)
def _text_tokens(part: Part, episode: int) -> int:
    # An upper bound for the prompts of an episode: its longest task's.
    return max(map(part.preparation.most_text_tokens, part.dataset.episodes[episode].tasks), default=0)


class Place(NamedTuple):
    """Where a sample goes. rank counts this node's ranks; row and image_row count in the micro-batch."""

    step: int
    rank: int
    micro: int
    row: int
    image_row: int


@dataclass(frozen=True)
class Clip:
    """Frames of one episode (ascending) that one window needs, and where each goes; it is read in one go."""

    part: int
    episode: int
    frames: tuple[int, ...]
    places: tuple[Place, ...]
    epoch: int

    @property
    def first_step(self) -> int:
        return min(place.step for place in self.places)

    @property
    def last_step(self) -> int:
        return max(place.step for place in self.places)


@dataclass(frozen=True, eq=False)
class Layout:
    """How a global batch is shared out. places: of each of its samples, None for a sample of another node.

    sizes[rank][micro] is (samples, images).
    """

    places: tuple[Place | None, ...]
    sizes: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, eq=False)
class _Block:
    """Neighbouring global batches, L of them: samples (part, episode position, frame), shapes (images, text tokens,
    action steps), costs and homes as `pack.share_out` takes them."""

    samples_LG3: np.ndarray
    shapes_LG3: np.ndarray
    costs_LG: np.ndarray
    homes_LG: np.ndarray


class Plan:
    """Global batch s is positions [s * batch_size, (s + 1) * batch_size) of the mixture.

    horizon_samples: what is planned together lies within so many positions, even where a window is larger. Only
    decoding twice depends on it.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        mixture: Mixture,
        batch_size: int,
        *,
        node: Node = ALONE,
        budget_tokens: int = 0,
        micro_batches: int = 1,
        suffixes_per_prefix: int = 1,
        draw_tokens: int = 0,
        horizon_samples: int = 4096,
    ) -> None:
        self.parts = tuple(parts)
        self.mixture = mixture
        self.batch_size = batch_size
        self.node = node
        self.budget_tokens, self.micro_batches = budget_tokens, micro_batches
        self.suffixes_per_prefix, self.draw_tokens = suffixes_per_prefix, draw_tokens
        self.horizon_samples = horizon_samples
        self.layout = lru_cache(maxsize=1024)(self._make_layout)
        self._block_steps = max(1, BLOCK_SAMPLES // batch_size)
        self._block = lru_cache(maxsize=4)(self._make_block)

    def window_steps(self) -> int:
        """At most so many global batches are begun by what is planned together."""
        spans = []
        for k, (order, share) in enumerate(zip(self.mixture.orders, self.mixture.shares, strict=True)):
            together = min(order.max_window_samples, self._most(k))
            spans.append(together / share if together > 1 else 1)
        return int(max(spans) / self.batch_size) + 2

    def _most(self, k: int) -> int:
        # So many samples of a dataset may be planned together.
        return max(1, int(self.horizon_samples * self.mixture.shares[k]))

    def clips(self, start_step: int) -> Iterator[Clip]:
        """All that the node has to read from `start_step` on, in the order in which it is first needed, without end.

        The first windows are cut finely: a batch waits for less then, until the service is ahead of its ranks.
        """
        done = self.mixture.counts(start_step * self.batch_size)
        planned: list[deque[Clip]] = [deque() for _ in self.parts]
        windows = [0] * len(self.parts)

        def turn(k: int) -> int:
            position = self.mixture.position_of(k, int(done[k]))
            return planned[k][0].first_step if planned[k] else position // self.batch_size

        while True:
            k = min(range(len(self.parts)), key=turn)
            if planned[k]:
                yield planned[k].popleft()
                continue
            last = min(self.mixture.orders[k].window(int(done[k]))[1], int(done[k]) + self._most(k))
            planned[k].extend(self._window_clips(k, int(done[k]), last, windows[k] < FINE_WINDOWS))
            done[k] = last
            windows[k] += 1

    def _window_clips(self, k: int, first: int, last: int, finely: bool) -> list[Clip]:
        order, part = self.mixture.orders[k], self.parts[k]
        positions = self.mixture.positions_of(k, first, last)
        steps, within = np.divmod(positions, self.batch_size)
        layouts = {step: self.layout(step) for step in np.unique(steps).tolist()}
        places = [layouts[s].places[i] for s, i in zip(steps.tolist(), within.tolist(), strict=True)]
        mine = [place for place in places if place is not None]
        samples = self._frames(k, order.samples(first, last))[[place is not None for place in places]]
        clips = []
        for members in cut(part, samples, finely):
            episode, frames = int(samples[members[0], 0]), tuple(samples[members, 1].tolist())
            where = tuple(mine[i] for i in members.tolist())
            clips.append(Clip(k, episode, frames, where, first // order.num_samples))
        return clips

    def _frames(self, k: int, samples: np.ndarray) -> np.ndarray:
        # (span, offset) to (episode position, frame).
        spans = self.parts[k].spans_S3[samples[:, 0]]
        return np.stack([spans[:, 0], spans[:, 1] + samples[:, 1]], axis=1)

    def samples(self, step: int) -> np.ndarray:
        """int64 [G, 3] of (part, episode position, frame) of a global batch."""
        return self._block(step // self._block_steps).samples_LG3[step % self._block_steps]

    def cost(self, k: int, episode: int, frame: int) -> int:
        """Tokens of a sample of dataset k, at most."""
        part = self.parts[k]
        (text,), (steps,) = part.costs(np.array([episode]), np.array([frame]))
        return int(self._costs(np.array([part.num_images, text, steps]), part.image_tokens))

    def _costs(self, shapes: np.ndarray, image_tokens: np.ndarray | int) -> np.ndarray:
        # Of (images, text tokens, action steps) [..., 3].
        images, text, steps = np.moveaxis(shapes, -1, 0)
        return cost_in_tokens(
            images, text, steps,
            image_tokens=image_tokens, draw_tokens=self.draw_tokens, num_draws=self.suffixes_per_prefix,
        )  # fmt: skip

    def _make_layout(self, step: int) -> Layout:
        block, i = self._block(step // self._block_steps), step % self._block_steps
        costs, homes = block.costs_LG[i], block.homes_LG[i]
        ranks = share_out(costs, homes, self.node.num_nodes, self.node.ranks_per_node)
        return self._lay_out(step, block.shapes_LG3[i], costs, ranks)

    def _make_block(self, number: int) -> _Block:
        size = self._block_steps * self.batch_size
        samples = self.mixture.samples(number * size, (number + 1) * size)
        shapes, homes = np.zeros((size, 3), np.int64), np.empty(size, np.int64)
        for k, part in enumerate(self.parts):
            rows = np.flatnonzero(samples[:, 0] == k)
            samples[rows, 1:] = self._frames(k, samples[rows, 1:])
            shapes[rows, 0] = part.num_images
            shapes[rows, 1], shapes[rows, 2] = part.costs(samples[rows, 1], samples[rows, 2])
            homes[rows] = (k << 56) + (samples[rows, 1] << 24) + samples[rows, 2] // part.clip_frames
        image_tokens = np.array([part.image_tokens for part in self.parts])[samples[:, 0]]
        costs = self._costs(shapes, image_tokens)
        grid = self._block_steps, self.batch_size
        return _Block(samples.reshape(*grid, 3), shapes.reshape(*grid, 3), costs.reshape(grid), homes.reshape(grid))

    def _lay_out(self, step: int, shapes: np.ndarray, costs: np.ndarray, ranks: np.ndarray) -> Layout:
        num_ranks = self.node.num_nodes * self.node.ranks_per_node
        owned = [np.flatnonzero(ranks == rank) for rank in range(num_ranks)]
        split = equal_counts([costs[own] for own in owned], self.budget_tokens, self.micro_batches)
        batches = [[own[members] for members in parts] for own, parts in zip(owned, split, strict=True)]
        first = self.node.number * self.node.ranks_per_node
        places: list[Place | None] = [None] * len(ranks)
        sizes = []
        for rank, own_batches in enumerate(batches[first : first + self.node.ranks_per_node]):
            own_sizes = []
            for number, members in enumerate(own_batches):
                ordered = members[np.lexsort((members, *shapes[members].T[::-1]))]
                images = shapes[ordered, 0]
                firsts = (np.cumsum(images) - images).tolist()
                for row, (i, first_image) in enumerate(zip(ordered.tolist(), firsts, strict=True)):
                    places[i] = Place(step, rank, number, row, first_image)
                own_sizes.append((len(ordered), int(images.sum())))
            sizes.append(tuple(own_sizes))
        return Layout(tuple(places), tuple(sizes))


def cut(part: Part, samples: np.ndarray, finely: bool) -> list[np.ndarray]:
    """Row numbers of each clip of the samples [n, 2] of (episode position, frame), by the first one needed.

    Frames that share packets stay together. Others of the same clip do, unless `finely`.
    """
    rank = np.lexsort((samples[:, 1], samples[:, 0]))
    episodes, frames = samples[rank].T
    new_episode = np.diff(episodes, prepend=-1) != 0
    is_cut = new_episode | finely | (np.diff(frames // part.clip_frames, prepend=-1) != 0)
    for members in np.split(np.arange(len(rank)), np.flatnonzero(new_episode)[1:]):
        if len(members) > 1:
            episode = part.dataset.episodes[int(episodes[members[0]])]
            is_cut[members] &= part.dataset.starts_afresh(episode, part.preparation.cameras, frames[members])
    pieces = [rank[p] for p in np.split(np.arange(len(rank)), np.flatnonzero(is_cut)[1:]) if len(p)]
    return sorted(pieces, key=min)
