"""Frames at training resolution, kept as the first epoch passes: later epochs need no decoder.

On local disk, one sparse file per camera and episode: a checksum for each frame, then the frames. A frame is there once
its checksum is, which is written after it and compared when it is read, so a crash costs frames and never shows a wrong
one.
"""

from __future__ import annotations

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


class _File(NamedTuple):
    checksum_F: np.ndarray  # uint32, 0 where there is no frame
    frames_FHWC: np.ndarray


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
        self._file = lru_cache(maxsize=MAX_OPEN_FILES if folder else None)(self._open)

    def read(
        self, camera: str, episode: int, length: int, frames: Sequence[int], outs: Sequence[np.ndarray]
    ) -> list[int]:
        """Fill `outs` with the frames that are here; returns the places in `frames` of those that are not."""
        file = self._file(camera, episode, length)
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
        file.frames_FHWC[frame] = image_HWC
        file.checksum_F[frame] = _checksum(image_HWC)

    def _open(self, camera: str, episode: int, length: int) -> _File:
        if self._folder is None:
            return _File(np.zeros(length, np.uint32), np.zeros((length, *self._shape), np.uint8))
        path = self._folder / f"{camera.replace('/', '-')}" / f"{episode:08d}.frames"
        path.parent.mkdir(exist_ok=True)
        head_bytes = -(-4 * length // PAGE_BYTES) * PAGE_BYTES
        with path.open("ab") as file:
            file.truncate(head_bytes + length * int(np.prod(self._shape)))
        checksum_F = np.memmap(path, np.uint32, "r+", shape=(length,))
        return _File(checksum_F, np.memmap(path, np.uint8, "r+", offset=head_bytes, shape=(length, *self._shape)))


def _taken_bytes(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return sum(512 * path.stat().st_blocks for path in folder.rglob("*.frames"))
    except OSError as error:
        raise InputError(f"data.cache_dir: cannot write to {folder}: {error.strerror}") from error


def _checksum(image_HWC: np.ndarray) -> int:
    return zlib.crc32(image_HWC.data) or 1
