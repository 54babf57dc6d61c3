"""Frames at training resolution, kept as the first epoch passes: later epochs need no decoder.

On local disk, one sparse file per camera and episode: a checksum for each frame, then the frames. A frame is there once
its checksum is, which is written after it and compared when it is read, so a crash costs frames and never shows a wrong
one.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vlarge.contracts import InputError

PAGE_BYTES = 4096
MAX_OPEN_FILES = 1024
log = logging.getLogger(__name__)


class _File(NamedTuple):
    checksum_F: np.ndarray  # uint32, 0 where there is no frame
    frames_FHWC: np.ndarray
    path: Path | None = None  # None: in memory
    head_bytes: int = 0


class FrameCache:
    """Of one dataset, in `folder`, or in this process's memory when that is None. Threads and, on disk, processes may
    share one; all of them write the same frames.

    shape: (height, width) of every frame. Once `budget_bytes` are taken nothing is added, and nothing is thrown out:
    every frame is read once an epoch, so none is worth more than another. Raises InputError when `folder` is not to be
    written to.
    """

    def __init__(self, folder: Path | None, shape: tuple[int, int], budget_bytes: int) -> None:
        self._folder = folder
        self._shape = (*shape, 3)
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self.num_bytes = _taken_bytes(folder) if folder else 0
        self._opening = threading.Lock()  # two threads must not each open a file in memory
        self._opened = lru_cache(maxsize=MAX_OPEN_FILES if folder else None)(self._open)

    def read(
        self, camera: str, episode: int, length: int, frames: Sequence[int], outs: Sequence[np.ndarray]
    ) -> list[int]:
        """Fill `outs` with the frames that are here; returns the places in `frames` of those that are not."""
        file = self._file(camera, episode, length)
        if file is None:
            return list(range(len(frames)))
        missing = []
        for i, (frame, out) in enumerate(zip(frames, outs, strict=True)):
            checksum = int(file.checksum_F[frame])
            if checksum:
                out[...] = file.frames_FHWC[frame]
            if not checksum or _checksum(out) != checksum:
                missing.append(i)
        return missing

    def write(self, camera: str, episode: int, length: int, frame: int, image_HWC: np.ndarray) -> None:
        """Keep one frame, if there is room."""
        with self._lock:
            if self.num_bytes + image_HWC.nbytes > self._budget_bytes:
                return
            self.num_bytes += image_HWC.nbytes
        file = self._file(camera, episode, length)
        if file is None:
            return
        if file.path is None:
            file.frames_FHWC[frame] = image_HWC
            file.checksum_F[frame] = _checksum(image_HWC)
            return
        try:  # through the file, not the map: a full disk is then an error here and no signal
            with file.path.open("r+b", buffering=0) as handle:
                os.pwrite(handle.fileno(), image_HWC.data, file.head_bytes + frame * image_HWC.nbytes)
                os.pwrite(handle.fileno(), np.uint32(_checksum(image_HWC)).tobytes(), 4 * frame)
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        # Nothing more is kept; what is there stays of use.
        log.warning("no more frames are kept in %s: %s", self._folder, error.strerror)
        with self._lock:
            self._budget_bytes = 0

    def _file(self, camera: str, episode: int, length: int) -> _File | None:
        with self._opening:
            return self._opened(camera, episode, length)

    def _open(self, camera: str, episode: int, length: int) -> _File | None:
        if self._folder is None:
            return _File(np.zeros(length, np.uint32), np.zeros((length, *self._shape), np.uint8))
        path = self._folder / f"{camera.replace('/', '-')}" / f"{episode:08d}.frames"
        head_bytes = -(-4 * length // PAGE_BYTES) * PAGE_BYTES
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.truncate(head_bytes + length * int(np.prod(self._shape)))
            checksum_F = np.memmap(path, np.uint32, "r", shape=(length,))
            frames_FHWC = np.memmap(path, np.uint8, "r", offset=head_bytes, shape=(length, *self._shape))
        except OSError as error:
            self._stop(error)
            return None
        return _File(checksum_F, frames_FHWC, path, head_bytes)


def _taken_bytes(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return sum(512 * path.stat().st_blocks for path in folder.rglob("*.frames"))
    except OSError as error:
        raise InputError(f"data.cache_dir: cannot write to {folder}: {error.strerror}") from error


def _checksum(image_HWC: np.ndarray) -> int:
    return zlib.crc32(image_HWC.data) or 1
