"""Frames at training resolution, kept as the first epoch passes: later epochs need no decoder.

On local disk, one sparse file per camera and episode: a checksum for each frame, then the frames. A frame is there once
its checksum is, which is written after it and compared when it is read, so a crash costs frames and never shows a wrong
one.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from vlarge.contracts import InputError

VERSION = "v1"  # of the files, and of how pictures are decoded and resized: raise it with either
PAGE_BYTES = 4096
MAX_KNOWN_FILES = 1024
log = logging.getLogger(__name__)


class _Memory(NamedTuple):
    checksum_F: np.ndarray  # uint32, 0 where there is no frame
    frames_FHWC: np.ndarray

    def read(self, frames: Sequence[int], outs: Sequence[np.ndarray]) -> list[int]:
        """Fill those of `outs` for which there is a frame; returns its checksum, or 0, for each."""
        for frame, out in zip(frames, outs, strict=True):
            if self.checksum_F[frame]:
                out[...] = self.frames_FHWC[frame]
        return self.checksum_F[list(frames)].tolist()

    def write(self, frame: int, image_HWC: np.ndarray) -> None:
        self.frames_FHWC[frame] = image_HWC
        self.checksum_F[frame] = _checksum(image_HWC)


class _Disk(NamedTuple):
    # Read and written through the file, not a map: a full disk or a file cut short is then an error and no signal.
    path: Path
    head_bytes: int

    def read(self, frames: Sequence[int], outs: Sequence[np.ndarray]) -> list[int]:
        """As `_Memory.read`."""
        checksums = []
        with self.path.open("rb", buffering=0) as file:
            for frame, out in zip(frames, outs, strict=True):
                checksums.append(int.from_bytes(os.pread(file.fileno(), 4, 4 * frame), sys.byteorder))
                if checksums[-1]:
                    os.preadv(file.fileno(), [out.data.cast("B")], self.head_bytes + frame * out.nbytes)
        return checksums

    def write(self, frame: int, image_HWC: np.ndarray) -> None:
        with self.path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), image_HWC.data, self.head_bytes + frame * image_HWC.nbytes)
            os.pwrite(file.fileno(), np.uint32(_checksum(image_HWC)).tobytes(), 4 * frame)


class FrameCache:
    """Of one dataset, in `folder`, or in this process's memory when that is None. Threads and, on disk, processes may
    share one; all of them write the same frames. An episode is known as "NUMBER-STAMP"; its stamp changes when its
    video does, and what was kept of it under another stamp goes.

    shape: (height, width) of every frame. Once `budget_bytes` are taken nothing is added, which is told once, and
    nothing is thrown out: every frame is read once an epoch, so none is worth more than another. Raises InputError when
    `folder` is not to be written to.
    """

    def __init__(self, folder: Path | None, shape: tuple[int, int], budget_bytes: int) -> None:
        self._folder = folder and folder / VERSION
        self._shape = (*shape, 3)
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._is_told = False
        self.num_bytes = _taken_bytes(self._folder) if self._folder else 0
        self._opening = threading.Lock()  # two threads must not each open a file in memory
        self._opened = lru_cache(maxsize=MAX_KNOWN_FILES if folder else None)(self._open)

    def read(
        self, camera: str, episode: str, length: int, frames: Sequence[int], outs: Sequence[np.ndarray]
    ) -> list[int]:
        """Fill `outs` with the frames that are here; returns the places in `frames` of those that are not."""
        file = self._file(camera, episode, length)
        if file is None:
            return list(range(len(frames)))
        try:
            checksums = file.read(frames, outs)
        except OSError:  # the file has gone: nothing is lost but time
            return list(range(len(frames)))
        return [
            i for i, (kept, out) in enumerate(zip(checksums, outs, strict=True)) if not kept or _checksum(out) != kept
        ]

    def write(self, camera: str, episode: str, length: int, frame: int, image_HWC: np.ndarray) -> None:
        """Keep one frame, if there is room."""
        file = self._file(camera, episode, length)
        if file is None or not self._take(image_HWC.nbytes):
            return
        try:
            file.write(frame, image_HWC)
        except FileNotFoundError:  # it has gone, as for `read`
            self._give_back(image_HWC.nbytes)
        except OSError as error:
            self._stop(error)

    def _take(self, num_bytes: int) -> bool:
        with self._lock:
            if self.num_bytes + num_bytes <= self._budget_bytes:
                self.num_bytes += num_bytes
                return True
        if self._folder:
            self._tell(f"data.cache_bytes = {self._budget_bytes} are taken; raise it to decode every frame only once")
        return False

    def _give_back(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes = max(0, self.num_bytes - num_bytes)  # what others have written was not counted

    def _stop(self, error: OSError) -> None:
        # Nothing more is kept; what is there stays of use.
        self._tell(str(error.strerror))
        with self._lock:
            self._budget_bytes = 0

    def _tell(self, why: str) -> None:
        with self._lock:
            is_told, self._is_told = self._is_told, True
        if not is_told:
            log.warning("no more frames are kept in %s: %s", self._folder, why)

    def _file(self, camera: str, episode: str, length: int) -> _Memory | _Disk | None:
        with self._opening:
            return self._opened(camera, episode, length)

    def _open(self, camera: str, episode: str, length: int) -> _Memory | _Disk | None:
        if self._folder is None:
            return _Memory(np.zeros(length, np.uint32), np.zeros((length, *self._shape), np.uint8))
        number = episode.partition("-")[0]
        # Hundreds of episodes to a folder: it is looked through for each new file.
        path = self._folder / f"camera-{quote(camera, safe='')}" / f"{number[:-2]}xx" / f"{episode}.frames"
        head_bytes = -(-4 * length // PAGE_BYTES) * PAGE_BYTES
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._remove(path.parent.glob(f"{number}-*.frames"))
            with path.open("ab") as file:
                file.truncate(head_bytes + length * int(np.prod(self._shape)))
        except OSError as error:
            self._stop(error)
            return None
        return _Disk(path, head_bytes)

    def _remove(self, old: Iterable[Path]) -> None:
        # Whoever has one open keeps what it has.
        for path in old:
            self._give_back(_bytes_of(path))
            path.unlink(missing_ok=True)


def _taken_bytes(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.parent.iterdir():
            if other.name != VERSION:
                shutil.rmtree(other, ignore_errors=True)
        return sum(_bytes_of(path) for path in folder.rglob("*.frames"))
    except OSError as error:
        raise InputError(f"data.cache_dir: cannot write to {folder.parent}: {error.strerror}") from error


def _bytes_of(path: Path) -> int:
    try:
        return 512 * path.stat().st_blocks
    except FileNotFoundError:  # another process was first to remove it
        return 0


def _checksum(image_HWC: np.ndarray) -> int:
    return zlib.crc32(image_HWC.data) or 1
