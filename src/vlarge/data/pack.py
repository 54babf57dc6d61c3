"""Samples of a batch laid end to end: no padding, no mask, one count per sample and part.

And which rank and micro-batch each sample of a global batch goes to: by its cost in tokens, known before anything is
read, so that all ranks have equal work, none exceeds its budget and nothing is carried over to the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from vlarge.contracts import InputError, PackedBatch, Sample
from vlarge.data.order import mix


def pack(samples: Sequence[Sample]) -> PackedBatch:
    """The samples as one batch, sorted by (images, text length, action steps) so that equal segments are neighbours.

    Samples of equal shape keep their order. No sample at all gives an empty batch. Images must share one size.
    """
    ordered = sorted(samples, key=lambda s: (len(s.images), len(s.prompt_ids), len(s.actions_SA)))
    images = [image for s in ordered for image in s.images.values()]
    counts = [len(s.images) for s in ordered]
    return assemble(ordered, np.stack(images) if images else np.zeros((0, 0, 0, 3), np.uint8), counts)


def assemble(samples: Sequence[Sample], images_NHWC: np.ndarray, num_images: Sequence[int]) -> PackedBatch:
    """A batch of these samples in this order; their images, sample after sample, are given apart."""
    return PackedBatch(
        sample_ids_B3=np.array([s.id for s in samples], np.int64).reshape(-1, 3),
        images_NHWC=images_NHWC,
        num_images_B=np.array(num_images, np.int64),
        text_T=_concatenate([s.prompt_ids for s in samples], np.int64),
        num_text_B=np.array([len(s.prompt_ids) for s in samples], np.int64),
        state_BA=_widen([s.state_A[None] for s in samples]),
        actions_SA=_widen([s.actions_SA for s in samples]),
        num_actions_B=np.array([len(s.actions_SA) for s in samples], np.int64),
        action_dims_B=np.array([s.actions_SA.shape[1] for s in samples], np.int64),
        embodiments_B=np.array([s.embodiment for s in samples], np.int64),
        augment_N7=np.concatenate([s.augment_N7 for s in samples] or [np.zeros((0, 7), np.float32)]),
    )


def _concatenate(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)


def _widen(rows: Sequence[np.ndarray]) -> np.ndarray:
    # Rows [n, A] of different widths under each other, zeros to the right.
    widest = max((r.shape[1] for r in rows), default=0)
    result = np.zeros((sum(map(len, rows)), widest), np.float32)
    start = 0
    for r in rows:
        result[start : start + len(r), : r.shape[1]] = r
        start += len(r)
    return result


def share_out(costs: np.ndarray, homes: np.ndarray, num_nodes: int, ranks_per_node: int) -> np.ndarray:
    """int64 [G]: the rank of each sample of a global batch.

    costs: int64 [G] tokens. homes: int64 [G], equal for samples that are cheap to read together: they share a node
    where balance allows. Where there are as many samples as ranks, every rank has one. Within a node, longest
    processing time first (Graham, "Bounds on multiprocessing timing anomalies", 1969): the ranks' sums differ by less
    than the largest sample.
    """
    if num_nodes == ranks_per_node == 1:
        return np.zeros(len(costs), np.int64)
    nodes = _nodes(costs, homes, num_nodes, ranks_per_node)
    ranks = np.empty(len(costs), np.int64)
    for node in range(num_nodes):
        members = np.flatnonzero(nodes == node)
        load = [0] * ranks_per_node
        for i in members[np.argsort(-costs[members], kind="stable")].tolist():
            lightest = load.index(min(load))
            load[lightest] += int(costs[i])
            ranks[i] = node * ranks_per_node + lightest
    return ranks


def _nodes(costs: np.ndarray, homes: np.ndarray, num_nodes: int, ranks_per_node: int) -> np.ndarray:
    # Each home has a node by its hash; then samples leave the heaviest node for the lightest while that evens them out.
    nodes = (mix(homes) % np.uint64(num_nodes)).astype(np.int64)
    load = np.bincount(nodes, costs, num_nodes)
    members = [np.flatnonzero(nodes == node).tolist() for node in range(num_nodes)]

    def move(source: int, target: int) -> None:
        moved = members[source].pop()
        members[target].append(moved)
        nodes[moved] = target
        load[source] -= costs[moved]
        load[target] += costs[moved]

    while num_nodes > 1:
        heavy, light = int(load.argmax()), int(load.argmin())
        if not members[heavy] or load[heavy] - load[light] <= costs[members[heavy][-1]]:
            break
        move(heavy, light)
    while min(map(len, members)) < min(ranks_per_node, len(costs) // num_nodes):
        counts = [len(each) for each in members]
        move(counts.index(max(counts)), counts.index(min(counts)))
    return nodes


def equal_counts(costs: Sequence[np.ndarray], budget: int, multiple: int) -> list[list[list[int]]]:
    """Sample numbers of each micro-batch of each rank: all ranks run equally many, empty ones first where need be.

    costs: of each rank's samples. budget: tokens of a micro-batch, 0 for no bound. multiple: above 1, of a pipeline,
    which wants them alike: so many of equal cost, or more where evenness would break the budget.
    """
    split = [micro_batches(own, budget) for own in costs]
    most = max(map(len, split))
    if multiple > 1:
        return _evenly(costs, budget, multiple, most)
    return [[list[int]()] * (most - len(parts)) + parts for parts in split]


def _evenly(costs: Sequence[np.ndarray], budget: int, multiple: int, least: int) -> list[list[list[int]]]:
    for times in count(-(-least // multiple)):
        split = [even_batches(own, times * multiple) for own in costs]
        most = max(own[members].sum() for own, parts in zip(costs, split, strict=True) for members in parts)
        if not budget or most <= budget:
            break
    return split


def even_batches(costs: np.ndarray, num: int) -> list[list[int]]:
    """Sample numbers of each of `num` micro-batches of as equal cost as can be; some are empty with few samples.

    Longest processing time first, as in `share_out`.
    """
    bins: list[list[int]] = [[] for _ in range(num)]
    load = [0] * num
    for i in np.argsort(-costs, kind="stable").tolist():
        lightest = load.index(min(load))
        bins[lightest].append(i)
        load[lightest] += int(costs[i])
    return [sorted(members) for members in bins]


def cost_in_tokens[N: (int, np.ndarray)](
    images: N, text: N, steps: N, *, image_tokens: N | int, draw_tokens: int, num_draws: int
) -> N:
    """What a sample counts as: its images, its text, and with every draw of noise its action steps."""
    return images * image_tokens + text + num_draws * (draw_tokens + steps)


def check_budget(budget: int, cost: int) -> None:
    """Raise InputError for a sample of `cost` tokens that alone exceeds `budget` tokens; 0 holds anything."""
    if 0 < budget < cost:
        raise InputError(
            f"train.micro_batch_tokens (--train.mbs) is {budget}, and a sample has {cost} tokens: make it {cost} or"
            " more, or leave it 0"
        )


def micro_batches(costs: np.ndarray, budget: int) -> list[list[int]]:
    """Sample numbers of each micro-batch: first-fit decreasing under `budget` tokens; 0 puts all into one.

    Raises InputError for a sample that alone exceeds the budget.
    """
    if not budget:
        return [list(range(len(costs)))]
    bins: list[list[int]] = []
    room: list[int] = []
    for i in np.argsort(-costs, kind="stable").tolist():
        cost = int(costs[i])
        check_budget(budget, cost)
        fitting = next((b for b, left in enumerate(room) if left >= cost), -1)
        if fitting < 0:
            bins.append([])
            room.append(budget)
        bins[fitting].append(i)
        room[fitting] -= cost
    return [sorted(members) for members in bins]
