"""The chunk queue: execute some of a predicted chunk, then look again."""

from __future__ import annotations

from collections import deque

import numpy as np

from vlarge.contracts import InputError


class ChunkQueue:
    """Actions waiting to be executed in one episode. `replan` of each chunk are used (0: all of it)."""

    def __init__(self, replan: int = 0) -> None:
        if replan < 0:
            raise InputError(f"evaluate.replan is {replan}; give 0 for whole chunks, or a count of actions")
        self.replan = replan
        self._waiting: deque[np.ndarray] = deque()

    @property
    def empty(self) -> bool:
        return not self._waiting

    def fill(self, chunk_SA: np.ndarray) -> None:
        """Put a freshly predicted chunk in place of what is left."""
        self._waiting = deque(chunk_SA[: self.replan or None])

    def next(self) -> np.ndarray:
        return self._waiting.popleft()
