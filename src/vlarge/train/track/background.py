"""A thread of its own for a slow destination, so that no step waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

Record = Mapping[str, Any]

MAX_WAITING = 10_000  # records; a destination that far behind has failed
MAX_SENT = 50  # records at a time
CLOSE_S = 30.0


class Background:
    """Hands records to `send` in order, many at a time. What it raises, the next `log` or `close` raises."""

    def __init__(self, send: Callable[[Sequence[Record]], None], name: str) -> None:
        self._send = send
        self._waiting: queue.Queue[Record | None] = queue.Queue(MAX_WAITING)
        self._error: Exception | None = None
        self._is_given_up = False
        # A daemon: a request that hangs does not keep the process.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        if self._error:
            raise self._error
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            raise TimeoutError(f"it is {MAX_WAITING} steps behind") from None

    def close(self) -> None:
        """Send what is waiting, within CLOSE_S."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._give_up()
            raise TimeoutError(f"about {self._waiting.qsize()} steps were not sent within {CLOSE_S:.0f} s")
        if self._error:
            raise self._error

    def _give_up(self) -> None:
        self._is_given_up = True
        with suppress(queue.Full):  # then it has records in hand, and looks after them
            self._waiting.put_nowait(None)

    def _work(self) -> None:
        is_open = True
        while is_open and not self._is_given_up:
            batch = self._next_batch()
            is_open = batch[-1] is not None
            try:
                self._send([record for record in batch if record is not None])
            except Exception as error:
                self._error = error
                return

    def _next_batch(self) -> list[Record | None]:
        """At least one; ends with None when nothing follows."""
        batch = [self._waiting.get()]
        while len(batch) < MAX_SENT and batch[-1] is not None and not self._waiting.empty():
            batch.append(self._waiting.get())
        return batch
