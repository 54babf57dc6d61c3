"""Reads ahead of a consumer that takes samples in a known order, within a budget of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from vlarge.contracts import Sample
from vlarge.data.service.plan import Key, Piece


class Closed(Exception):
    """The window was closed while someone waited on it."""


class ReadAhead:
    """Threads load pieces in the order in which they will be needed; `take` waits for a sample and hands it over.

    A piece is loaded when it fits into the budget beside what is held, or when the consumer has reached its window,
    which needs all its pieces at about the same time. So no more is held than the budget or one window, whichever is
    larger. With `keep`, samples stay for ever.
    """

    def __init__(
        self,
        pieces: Iterator[Piece],
        load: Callable[[Piece], list[Sample]],
        *,
        sample_bytes: int,
        budget_bytes: int,
        keep: bool,
        num_threads: int,
    ) -> None:
        self._pieces = pieces
        self._load = load
        self._sample_bytes = sample_bytes
        self._budget_bytes = budget_bytes
        self._keep = keep
        self._state = threading.Condition()
        self._next: Piece | None = None
        self._held: dict[Key, Sample] = {}
        self._window = -1
        self._error: BaseException | None = None
        self.closed = False
        self.num_bytes = 0  # held, or being loaded
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{i}", daemon=True) for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, wanted: Iterable[tuple[Key, int]]) -> list[Sample]:
        """The samples of (key, start of the window it is in), once they are there. Raises what loading one raised."""
        with self._state:
            samples = [self._take_one(key, window) for key, window in wanted]
            self._state.notify_all()  # there is room again
            return samples

    def _take_one(self, key: Key, window: int) -> Sample:
        if key not in self._held:
            self._window = max(self._window, window)
            self._state.notify_all()
            self._state.wait_for(lambda: key in self._held or self.closed or self._error)
        if self._error:
            raise self._error
        if self.closed:
            raise Closed
        if self._keep:
            return self._held[key]
        self.num_bytes -= self._sample_bytes
        return self._held.pop(key)

    def close(self) -> None:
        """Stop the threads and drop everything. May be called twice."""
        with self._state:
            self.closed = True
            self._state.notify_all()
        for thread in self._threads:
            thread.join()
        self._held.clear()

    def _run(self) -> None:
        try:
            while (piece := self._admit()) is not None:
                samples = self._load(piece)
                with self._state:
                    self._held.update(zip(piece.keys, samples, strict=True))
                    self._state.notify_all()
        except Closed:
            pass
        except BaseException as error:  # handed to the consumer, whatever it is
            with self._state:
                self._error = self._error or error
                self._state.notify_all()

    def _admit(self) -> Piece | None:
        # The next piece once there is room for it; None when closed, and when all that is ever needed is held.
        with self._state:
            self._state.wait_for(lambda: self.closed or self._error or self._fits())
            if self.closed or self._error or self._next is None:
                return None
            piece, self._next = self._next, None
            self.num_bytes += self._sample_bytes * len(piece.frames)
            return piece

    def _fits(self) -> bool:
        self._next = self._next or next(self._pieces, None)
        if self._next is None:
            return True
        needed = self._sample_bytes * len(self._next.frames)
        return self._next.window <= self._window or self.num_bytes + needed <= self._budget_bytes
