"""Statistics of state and action over a dataset: from its rows, by one pass, and never from its metadata."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import ACTION, STATE
from vlarge.data import stats_file
from vlarge.data.accumulate import PENDING_PER_BIN, Accumulator, FeatureStats, PixelHistogram, compute, merge
from vlarge.data.sketch import MAX_BINS

if TYPE_CHECKING:
    from vlarge.data.index import Dataset, Episode

__all__ = [
    "Accumulator", "FeatureStats", "PixelHistogram", "Survey", "compute", "dataset_stats", "episode_stats", "merge",
    "survey", "task_stats",
]  # fmt: skip

KEYS = (STATE, ACTION)
NUM_THREADS = 4
# What the sketches of all tasks may take together, and what one has at least for each dimension.
TASKS_BYTES = 2**30
MIN_TASK_BINS = 2**10

Features = dict[str, Accumulator]


def _no_rows(max_bins: int = MAX_BINS) -> Features:
    return {key: Accumulator(max_bins) for key in KEYS}


@dataclass(frozen=True, eq=False)
class Survey:
    """Statistics of state and action by key (STATE, ACTION): of all rows, and of those of each episode and task.

    An episode or task without a row of finite numbers is left out.
    """

    whole: Features = field(default_factory=_no_rows)
    by_episode: dict[int, dict[str, FeatureStats]] = field(default_factory=dict)
    by_task: dict[str, dict[str, FeatureStats]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Part:
    """What one episode adds."""

    episode: int
    whole: Features
    stats: dict[str, FeatureStats] | None
    by_task: dict[str, Features]


def survey(
    dataset: Dataset, *, by_episode: bool = False, by_task: bool = False, num_threads: int = NUM_THREADS
) -> Survey:
    """Statistics of a dataset in one pass over its tables, files in parallel, episodes added in their order.

    A row counts when all numbers of its state and action are finite. The result is the same, bit for bit, for any
    number of threads. Memory: the tables of `num_threads` + 1 files, some 3 MB for each dimension, 100 bytes for each
    dimension and episode or task asked for; sketches of tasks take TASKS_BYTES, or MIN_TASK_BINS for each if that is
    more, so that quantiles of tasks are exact for small datasets and, in large ones, coarser the more tasks there are.
    Raises InputError naming the file that cannot be read.
    """

    def read(episodes: Sequence[Episode]) -> list[_Part]:
        return [_read_part(dataset, episode, by_episode, by_task) for episode in episodes]

    found = Survey()
    tasks: dict[str, Features] = {}
    max_task_bins = _max_task_bins(dataset) if by_task else 0
    # One thread reads the neighbours that share a file, so that no file is read twice.
    files = [list(group) for _, group in groupby(dataset.episodes, key=lambda episode: episode.table_file)]
    for part in (part for parts in _in_order(read, files, num_threads) for part in parts):
        _merge(found.whole, part.whole)
        if part.stats:
            found.by_episode[part.episode] = part.stats
        for task, features in part.by_task.items():
            _merge(tasks.setdefault(task, _no_rows(max_task_bins)), features)
    order = dict.fromkeys([*dataset.tasks, *tasks])
    found.by_task.update({task: _results(tasks[task]) for task in order if task in tasks})
    return found


def _read_part(dataset: Dataset, episode: Episode, by_episode: bool, by_task: bool) -> _Part:
    table = dataset.read_table(episode)
    good = np.isfinite(table.state_TA).all(1) & np.isfinite(table.action_TA).all(1)
    rows = {STATE: table.state_TA, ACTION: table.action_TA}
    if not good.all():
        rows = {key: r[good] for key, r in rows.items()}
    whole = _accumulate(rows)
    stats = _results(whole) if by_episode and good.any() else None
    tasks = [task for task, is_good in zip(table.tasks, good, strict=True) if is_good] if by_task else []
    names = list(dict.fromkeys(tasks))
    if len(names) <= 1:
        return _Part(episode.index, whole, stats, dict.fromkeys(names, whole))
    numbers = {name: number for number, name in enumerate(names)}
    task_R = np.array([numbers[task] for task in tasks])
    parts = {name: {key: r[task_R == number] for key, r in rows.items()} for name, number in numbers.items()}
    return _Part(episode.index, whole, stats, {name: _accumulate(part) for name, part in parts.items()})


def _accumulate(rows: dict[str, np.ndarray]) -> Features:
    features = _no_rows()
    for key, accumulator in features.items():
        accumulator.add(rows[key])
    return features


def _merge(into: Features, part: Features) -> None:
    for key, accumulator in into.items():
        accumulator.merge(part[key])


def _results(features: Features) -> dict[str, FeatureStats]:
    return {key: accumulator.result() for key, accumulator in features.items()}


def _max_task_bins(dataset: Dataset) -> int:
    """A power of two, from what is known before a row is read."""
    dim_bytes = 16 + 4 * PENDING_PER_BIN
    num_bins = TASKS_BYTES // (dim_bytes * max(1, dataset.state_dim + dataset.action_dim))
    if sum(episode.length for episode in dataset.episodes) <= num_bins:
        return MAX_BINS
    share = num_bins // max(1, len(dataset.tasks))
    return min(max(MIN_TASK_BINS, 2 ** max(0, share.bit_length() - 1)), MAX_BINS)


def _in_order[T, R](work: Callable[[T], R], items: Iterable[T], num_threads: int) -> Iterator[R]:
    """Results in the order of the items, worked on in threads that are at most `num_threads` items ahead."""
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(num_threads, "stats")
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def dataset_stats(dataset: Dataset, index_dir: str | None = None) -> dict[str, FeatureStats]:
    """Statistics of all rows, as `survey`. Raises InputError where no row is finite.

    index_dir: the folder in which they are kept for the next time; None keeps nothing. What was kept is used only for
    the same dataset revision and features, and only if it is intact.
    """
    if index_dir is None:
        return _results(survey(dataset).whole)
    path = stats_file.path_of(dataset, index_dir)
    found = stats_file.load(path, dataset)
    if found is None:
        found = _results(survey(dataset).whole)
        stats_file.save(path, dataset, found)
    return found


def episode_stats(dataset: Dataset) -> dict[int, dict[str, FeatureStats]]:
    """Statistics by episode number, as `survey`."""
    return survey(dataset, by_episode=True).by_episode


def task_stats(dataset: Dataset) -> dict[str, dict[str, FeatureStats]]:
    """Statistics by task, as `survey`."""
    return survey(dataset, by_task=True).by_task
