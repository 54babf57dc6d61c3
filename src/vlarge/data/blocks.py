"""Blocks of remote files kept on local disk: shared by the processes of a node, within a budget of bytes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

BLOCK_BYTES = 256 << 10  # a clip's bytes begin and end anywhere: up to two blocks of what is fetched are not its own
MAX_FETCH_BLOCKS = 128  # neighbours that are fetched together
AHEAD_SHARE = 32  # of the budget, which one read may fetch ahead
TOUCH_S = 60.0  # how precisely it is known which block was used last
STALE_S = 3600.0  # an unfinished block this old is a killed process's
log = logging.getLogger(__name__)

Fetch = Callable[[int, int], bytes]


class BlockCache:
    """Threads and processes may share a folder. A block that two threads want is fetched once.

    The folder holds at most `budget_bytes`, and what the other processes have added since each last looked: an eighth
    of the budget at most for each. What was used longest ago goes first. Where nothing can be written, nothing is kept.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._coming: dict[tuple[str, int], Future[bytes]] = {}
        self._room_lock = threading.Lock()  # looking through a folder of 100,000 blocks takes a while
        self._room_bytes = 0  # that may be written before the folder is looked through again
        self._keeps = budget_bytes >= BLOCK_BYTES

    def read(self, key: str, file_bytes: int, start: int, stop: int, fetch: Fetch, ahead_bytes: int = 0) -> bytes:
        """The bytes [start, stop) of the file that `key` names, `file_bytes` long; `fetch` gets what is not here.

        ahead_bytes: so many beyond `stop` come with these, where any of these has to be fetched.
        """
        if not self._keeps:
            return fetch(start, stop)
        spans = _spans(start, stop, file_bytes)
        mine, coming = self._claim(key, spans)
        further = self._further(stop, ahead_bytes, file_bytes) if mine else {}
        mine += self._claim(key, further)[0]
        blocks: dict[int, bytes] = {}
        try:
            for run in _runs(mine):
                blocks |= self._fetch(key, [(n, *(spans | further)[n]) for n in run], fetch)
        except BaseException as error:
            self._release(key, mine, blocks, error)
            raise
        self._release(key, mine, blocks)
        parts = []
        for n, (first, last) in spans.items():
            low, high = max(start, first), min(stop, last)
            block = blocks[n] if n in blocks else coming[n].result() if n in coming else None
            part = self._read(key, n, spans[n], low, high) if block is None else block[low - first : high - first]
            parts.append(fetch(low, high) if part is None else part)  # it was removed just now
        return b"".join(parts)

    def _further(self, stop: int, ahead_bytes: int, file_bytes: int) -> dict[int, tuple[int, int]]:
        # What many readers have fetched ahead must still be here when they come to it.
        last = stop + min(ahead_bytes, self._budget_bytes // AHEAD_SHARE)
        return _spans(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, min(last, file_bytes), file_bytes)

    def _claim(self, key: str, spans: dict[int, tuple[int, int]]) -> tuple[list[int], dict[int, Future[bytes]]]:
        # Which blocks this thread has to fetch, and which another one is fetching.
        with self._lock:
            coming = {n: self._coming[key, n] for n in spans if (key, n) in self._coming}
            mine = [n for n, (first, last) in spans.items() if n not in coming and not self._has(key, n, last - first)]
            self._coming |= {(key, n): Future() for n in mine}
        return mine, coming

    def _release(
        self, key: str, mine: Sequence[int], blocks: dict[int, bytes], error: BaseException | None = None
    ) -> None:
        with self._lock:
            futures = {n: self._coming.pop((key, n)) for n in mine}
        for n, future in futures.items():
            if n in blocks:
                future.set_result(blocks[n])
            else:
                future.set_exception(error)

    def _fetch(self, key: str, run: Sequence[tuple[int, int, int]], fetch: Fetch) -> dict[int, bytes]:
        begin = run[0][1]
        data = fetch(begin, run[-1][2])
        blocks = {n: data[first - begin : last - begin] for n, first, last in run}
        for n, block in blocks.items():
            if self._keeps:
                self._keep(key, n, block)
        return blocks

    def _path(self, key: str, number: int) -> Path:
        return self._folder / key / str(number)

    def _has(self, key: str, number: int, num_bytes: int) -> bool:
        try:
            return self._path(key, number).stat().st_size == num_bytes
        except OSError:
            return False

    def _read(self, key: str, number: int, span: tuple[int, int], start: int, stop: int) -> bytes | None:
        try:
            with open(self._path(key, number), "rb", buffering=0) as file:
                about = os.fstat(file.fileno())
                if time.time() - about.st_mtime > TOUCH_S:
                    os.utime(file.fileno())
                data = os.pread(file.fileno(), stop - start, start - span[0])
        except OSError:
            return None
        return data if len(data) == stop - start else None

    def _keep(self, key: str, number: int, block: bytes) -> None:
        path = self._path(key, number)
        unfinished = path.with_name(f"{number}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            self._make_room(len(block))
            try:
                unfinished.write_bytes(block)
            except FileNotFoundError:  # the first of its file, or another process has removed the emptied folder
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished.write_bytes(block)
            unfinished.rename(path)
        except OSError as error:
            log.warning("blocks of remote files are not kept in %s: %s", self._folder, error.strerror)
            self._keeps = False
            with suppress(OSError):
                unfinished.unlink()

    def _make_room(self, num_bytes: int) -> None:
        with self._room_lock:
            if num_bytes > self._room_bytes:
                self._room_bytes = max(self._budget_bytes // 8, BLOCK_BYTES)
                self._shrink(self._budget_bytes - self._room_bytes)
            self._room_bytes -= num_bytes

    def _shrink(self, target_bytes: int) -> None:
        found = sorted(_files(self._folder))
        total = sum(size for _, size, _ in found)
        for used_s, size, path in found:
            is_stale = path.endswith(".partial") and time.time() - used_s > STALE_S
            if total > target_bytes or is_stale:
                with suppress(OSError):
                    os.unlink(path)
                    os.rmdir(os.path.dirname(path))  # where it was the last one
                total -= size


def _spans(start: int, stop: int, file_bytes: int) -> dict[int, tuple[int, int]]:
    # The bytes of each block that [start, stop) touches, by its number.
    numbers = range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
    return {n: (n * BLOCK_BYTES, min((n + 1) * BLOCK_BYTES, file_bytes)) for n in numbers}


def _files(folder: Path) -> Iterator[tuple[float, int, str]]:
    for of_one in _entries(folder):
        for block in _entries(of_one.path):
            with suppress(OSError):  # another process may remove it first
                about = block.stat()
                yield about.st_mtime, about.st_size, block.path


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        yield from found


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    # Neighbours together, as many as are fetched at once.
    run: list[int] = list(numbers[:1])
    for before, number in pairwise(numbers):
        if number != before + 1 or len(run) == MAX_FETCH_BLOCKS:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
