"""The deep check: every frame of every camera of every usable episode is decoded once, and nothing is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from vlarge.contracts import InputError
from vlarge.data.check import Fault, Unreachable
from vlarge.data.index import Dataset, Episode

MAX_RESTARTS = 32  # damaged frames of an episode that are named one by one


def deep_check(dataset: Dataset, tell: Callable[[str, int], None]) -> list[Fault]:
    """Faults that only decoding finds, by episode. Goes on after a damaged file; raises Unreachable for a lost store.

    tell(line, frames) is called as episodes are done.
    """
    found: list[Fault] = []
    num_threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="deep")
    try:
        jobs = {
            pool.submit(lambda e, k: list(_decode(dataset, e, k)), episode, key): (episode, key)
            for episode in dataset.episodes
            for key in dataset.camera_keys
        }
        for job in as_completed(jobs):
            episode, key = jobs.pop(job)
            faults = job.result()
            found += faults
            tell(f"episode {episode.index}, {key}: {faults[0].detail if faults else 'good'}", episode.length)
    finally:
        pool.shutdown(cancel_futures=True)
    return sorted(found, key=lambda f: (f.episode or 0, f.file))


def _decode(dataset: Dataset, episode: Episode, key: str) -> Iterator[Fault]:
    part = episode.videos.get(key)
    file = part.file if part else episode.table_file
    damaged, reason, sizes = _damaged_frames(dataset, episode, key)
    if damaged:
        which = ", ".join(map(str, damaged[:8])) + (" and more" if len(damaged) > 8 else "")
        yield Fault("damaged_frames", "quarantine", episode.index, file, f"frames {which} of {key}: {reason}")
    camera = dataset.cameras[key]
    other = sizes - {(camera.height, camera.width, 3)}
    if other:
        height, width, _ = min(other)
        detail = f"{key} has pictures of {height}x{width}, the camera's are {camera.height}x{camera.width}"
        yield Fault("wrong_resolution", "report", episode.index, file, detail)


def _damaged_frames(dataset: Dataset, episode: Episode, key: str) -> tuple[list[int], str, set[tuple[int, ...]]]:
    # Frames that cannot be decoded, why the first one cannot, and the shapes of the others.
    damaged: list[int] = []
    reason, sizes, start = "", set(), 0
    while start < episode.length and len(damaged) < MAX_RESTARTS:
        try:
            for image in dataset.iter_frames(episode, key, range(start, episode.length)):
                sizes.add(image.shape)
                start += 1
        except Unreachable:
            raise
        except InputError as error:
            damaged.append(start)
            reason = reason or str(error.__cause__ or error)
            start += 1
    return damaged, reason, sizes
