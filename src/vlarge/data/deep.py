"""The deep check: every frame of every camera of every usable episode is decoded once, and nothing is kept."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from queue import SimpleQueue
from typing import TYPE_CHECKING

from vlarge.contracts import InputError
from vlarge.data.check import Fault, Unreachable
from vlarge.data.config import Source
from vlarge.data.index import Dataset, Episode, open_dataset
from vlarge.data.service.decoder import CRASHES
from vlarge.data.service.lifetime import end_with_parent, how_ended

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MAX_RESTARTS = 32  # damaged frames of an episode that are named one by one


def deep_check(source: Source, dataset: Dataset, tell: Callable[[str, int], None]) -> list[Fault]:
    """Faults that only decoding finds, by episode. Goes on after a damaged file; raises Unreachable for a lost store.

    dataset: of `source`. tell(line, frames) is called as episodes are done.
    """
    found: list[Fault] = []
    num_decoders = len(os.sched_getaffinity(0))
    decoders: SimpleQueue[Checker] = SimpleQueue()

    def work(position: int, key: str) -> list[Fault]:
        decoder = decoders.get()
        try:
            return decoder.faults(position, key)
        finally:
            decoders.put(decoder)

    with ExitStack() as stack:
        for _ in range(num_decoders):
            decoders.put(stack.enter_context(closing(Checker(source, dataset))))
        pool = ThreadPoolExecutor(num_decoders, thread_name_prefix="deep")
        stack.callback(pool.shutdown, cancel_futures=True)
        jobs = {
            pool.submit(work, position, key): (episode, key)
            for position, episode in enumerate(dataset.episodes)
            for key in dataset.camera_keys
        }
        for job in as_completed(jobs):
            episode, key = jobs.pop(job)
            faults = job.result()
            found += faults
            tell(f"episode {episode.index}, {key}: {faults[0].detail if faults else 'good'}", episode.length)
    return sorted(found, key=lambda f: (f.episode or 0, f.file))


class Checker:
    """Decodes in a process of its own: a file that crashes the decoder is a fault like another."""

    def __init__(self, source: Source, dataset: Dataset) -> None:
        self._source = source
        self._dataset = dataset
        self._context = multiprocessing.get_context("spawn")
        self.pid: int | None = None

    def faults(self, position: int, key: str) -> list[Fault]:
        """Of one camera of the episode at a position."""
        if self.pid is None:
            self._start()
        try:
            self._pipe.send((position, key))
            answer: list[Fault] | Exception = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            code = self._end()
            if -code not in CRASHES:  # no file's fault
                raise RuntimeError(f"a process that decodes has ended ({how_ended(code)}); check again") from error
            episode = self._dataset.episodes[position]
            detail = f"{key}: decoding it ended the decoder ({how_ended(code)})"
            return [Fault("damaged_frames", "quarantine", episode.index, episode.file_of(key), detail)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        if self.pid is not None:
            self._process.kill()
            self._end()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        about = os.getpid(), self._source, self._dataset.revision, theirs
        self._process = self._context.Process(target=_serve, args=about, daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def _end(self) -> int:
        self._pipe.close()
        self._process.join()
        self.pid = None
        return self._process.exitcode or 0


def _serve(parent: int, source: Source, revision: str, pipe: Connection) -> None:
    end_with_parent(parent)
    dataset: Dataset | None = None
    while True:
        try:
            position, key = pipe.recv()
        except EOFError:
            return
        try:
            dataset = dataset or open_dataset(source)
            if dataset.revision != revision:
                raise Unreachable(f"{dataset.root} has changed since this check began; check again")
            pipe.send(list(_decode(dataset, dataset.episodes[position], key)))
        except Exception as error:
            pipe.send(error)


def _decode(dataset: Dataset, episode: Episode, key: str) -> Iterator[Fault]:
    file = episode.file_of(key)
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
