"""Where the time of one step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Wall seconds by named section, from its creation on."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()
        self._sections_s: dict[str, float] = {}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._sections_s[name] = self._sections_s.get(name, 0.0) + time.perf_counter() - start_s

    @property
    def total_s(self) -> float:
        return time.perf_counter() - self._start_s

    def seconds(self) -> dict[str, float]:
        """{"step_s": …, "<section>_s": …}"""
        return {"step_s": self.total_s} | {f"{name}_s": value for name, value in self._sections_s.items()}
