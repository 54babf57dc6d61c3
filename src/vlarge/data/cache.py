"""A thread-safe cache that forgets what was used longest ago once it holds more than its budget of bytes.

What was asked for last stays, however large: it is about to be asked for again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol


class Sized(Protocol):
    """What knows how much memory it takes."""

    @property
    def num_bytes(self) -> int: ...


class ByteCache[K: Hashable, V: Sized]:
    """Values by key, loaded on demand. Two threads may load one key at the same time; both results are equal."""

    def __init__(self, load: Callable[[K], V], budget_bytes: int) -> None:
        self._load = load
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: K) -> V:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = self._load(key)
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self.num_bytes += value.num_bytes
            while self.num_bytes > self._budget_bytes and len(self._values) > 1:
                self.num_bytes -= self._values.popitem(last=False)[1].num_bytes
        return value
