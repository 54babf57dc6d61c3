"""Shared memory that batches are decoded into: slots of one size in a file without a name.

The file lies in memory and has no name, so nothing is left of it when the last process that maps it is gone, however
that ended. Pages take memory once they are written; a slot given back is used again before a new one is.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable

import numpy as np


class Arena:
    """The owner's side. `take` never waits: how many slots may be in use is the caller's business."""

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = max(1, -(-slot_bytes // mmap.ALLOCATIONGRANULARITY)) * mmap.ALLOCATIONGRANULARITY
        self.file = os.memfd_create("vlarge-batches", os.MFD_CLOEXEC)
        self._free: list[int] = []
        self.num_slots = 0
        self._maps: dict[int, np.ndarray] = {}

    @property
    def num_taken(self) -> int:
        return self.num_slots - len(self._free)

    def take(self) -> int:
        """The number of a free slot."""
        if self._free:
            return self._free.pop()
        os.ftruncate(self.file, (self.num_slots + 1) * self.slot_bytes)
        self.num_slots += 1
        return self.num_slots - 1

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def view(self, slot: int, shape: tuple[int, ...]) -> np.ndarray:
        """uint8 of this shape: the beginning of a slot."""
        return _shaped(self.whole(slot), shape)

    def whole(self, slot: int) -> np.ndarray:
        """The bytes of a slot."""
        if slot not in self._maps:
            self._maps[slot] = map_slot(self.file, slot, self.slot_bytes)
        return self._maps[slot]

    def close(self) -> None:
        self._maps.clear()
        os.close(self.file)


class ArenaView:
    """The side of a process that reads batches out of an arena whose file it was handed."""

    def __init__(self, file: int, slot_bytes: int) -> None:
        self._file = file
        self._slot_bytes = slot_bytes
        self._maps: dict[int, mmap.mmap] = {}

    def view(self, slot: int, shape: tuple[int, ...], on_release: Callable[[int], None]) -> np.ndarray:
        """uint8 of this shape. `on_release(slot)` is called once nobody refers to the array or a part of it."""
        if slot not in self._maps:
            self._maps[slot] = mmap.mmap(self._file, self._slot_bytes, offset=slot * self._slot_bytes)
        # A fresh array for each hand-over: parts of it keep it alive, and its end is the batch's.
        whole = np.frombuffer(self._maps[slot], np.uint8)
        weakref.finalize(whole, on_release, slot).atexit = False
        return _shaped(whole, shape)

    def close(self) -> None:
        self._maps.clear()  # a map that an array still refers to lives as long as the array
        os.close(self._file)


def map_slot(file: int, slot: int, slot_bytes: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(file, slot_bytes, offset=slot * slot_bytes), np.uint8)


def _shaped(whole: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return whole[: int(np.prod(shape))].reshape(shape)
