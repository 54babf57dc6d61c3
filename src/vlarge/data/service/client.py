"""A rank's side of a service that is a process of its own."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from vlarge.data.service.arena import ArenaView
from vlarge.data.service.batches import Ready
from vlarge.data.service.feed import Feed
from vlarge.data.service.lifetime import how_ended, start
from vlarge.data.service.messages import NEXT, RELEASE, REQUEST, Gone, Receiver, raise_error, restore
from vlarge.data.service.stream import DEFAULT_LIMITS, Limits, Stream

SILENCE = "the data service does not answer"
SILENT_S = 5.0  # beyond what was agreed, before a service that says nothing is called silent


class ServiceDied(RuntimeError):
    """The data service ended in the middle of a run."""


class ServiceProcess:
    """Starts a node's service. Other ranks of the node connect to `address`, a name that lies in no file system."""

    def __init__(self, feed: Feed) -> None:
        self.address = f"vlarge-data-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + self.address)
            listener.listen()
            files = [listener.fileno()]
            self._process = start("vlarge.data.service", files, files, feed.to_json())

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> str:
        """Wait for a service that has gone, and say how it ended."""
        return how_ended(self._process.wait(10))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Remote:
    """One rank's connection to the service of its node. process: where this rank started it."""

    def __init__(self, process: ServiceProcess | None = None) -> None:
        self._process = process
        self._connection = socket.socket(socket.AF_UNIX)
        self._receiver = Receiver(self._connection)
        self._asked = False
        self._late = SILENCE
        self._error: BaseException | None = None  # that ended the service's work
        self.counters: dict[str, Any] = {}

    def connect(self, address: str, local_rank: int) -> None:
        try:
            self._connection.connect("\0" + address)
            self._connection.sendall(struct.pack("<Q", local_rank))
        except OSError as error:
            raise self._died() from error

    def take(self, timeout_s: float) -> Ready | None:
        stop_s, patience_s = time.monotonic() + timeout_s, timeout_s + SILENT_S
        self._late = SILENCE
        while patience_s > 0 and (message := self._message(timeout_s, patience_s)):
            header, body = message
            if "late" not in header:
                return self._accept(header, body, timeout_s)
            # What was late while nobody waited is no news: it is reported when this wait is over.
            self._late, patience_s = header["late"], stop_s - time.monotonic()
        return None

    def _accept(self, header: dict[str, Any], body: memoryview, timeout_s: float) -> Ready:
        self._asked = False
        self.counters = header["counters"]
        ready = restore(header, body)
        with contextlib.suppress(OSError):  # asked ahead; what is wrong shows when it is needed
            self._ask(timeout_s)
        return ready

    def _message(self, timeout_s: float, patience_s: float) -> tuple[dict[str, Any], memoryview] | None:
        # What the service says to a request for the next batch; None when it says nothing for so long.
        if self._error:
            raise self._error
        try:
            self._ask(timeout_s)
            header, body = self._receiver.message(patience_s)
        except TimeoutError:
            return None
        except (Gone, ConnectionError) as error:
            raise self._died() from error
        try:
            raise_error(header, ServiceDied)
        except BaseException as error:
            self._error = error
            raise
        return header, body

    def _died(self) -> ServiceDied:
        how = f" ({self._process.end()})" if self._process else ""
        return ServiceDied(f"the node's data service has ended{how}; continue the run with --resume")

    def _ask(self, timeout_s: float) -> None:
        if not self._asked:
            self._connection.sendall(REQUEST.pack(NEXT, int(timeout_s * 1000)))
            self._asked = True

    def open_view(self, stall_s: float, tell: Callable[[str], None]) -> ArenaView:
        """The shared memory of the batches. Waits until the service has opened its datasets; raises what it raised."""
        self._connection.settimeout(stall_s)
        for number in count(1):
            try:
                data, files, _, _ = socket.recv_fds(self._connection, 8, 1)
                break
            except TimeoutError:
                tell(f"waited {number * stall_s:.0f} s for the data service so far: it is opening its datasets")
            except ConnectionError as error:
                raise self._died() from error
        if not data:
            raise self._died()
        if not files:
            self._raise(data)
        return ArenaView(files[0], struct.unpack("<Q", data)[0])

    def _raise(self, start: bytes) -> None:
        self._receiver.push(start)
        self._asked = True
        self.take(SILENT_S)
        raise AssertionError("a service that has no shared memory to offer says why")

    def release(self, slot: int) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(REQUEST.pack(RELEASE, slot))

    def late(self) -> str:
        return self._late

    def close(self) -> None:
        self._connection.close()
        if self._process:
            self._process.close()


def stream_from(
    address: str,
    local_rank: int,
    image_shape: tuple[int, int],
    process: ServiceProcess | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tell: Callable[[str], None] = print,
) -> Stream:
    """The stream of one rank from the service at `address`. Raises InputError for data that cannot be trained on."""
    remote = Remote(process)
    try:
        remote.connect(address, local_rank)
        return Stream(remote, remote.open_view(limits.stall_s, tell), image_shape, limits, tell)
    except BaseException:
        remote.close()
        raise
