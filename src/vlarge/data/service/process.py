"""A node's service as a process of its own: it feeds the ranks that connect, and ends with the first that leaves."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn

from vlarge.data.service.feed import Feed
from vlarge.data.service.lifetime import end_with_parent
from vlarge.data.service.messages import NEXT, RELEASE, REQUEST, Gone, Receiver, describe, send, send_error
from vlarge.data.service.node import NodeService

CONNECT_S = 300.0  # ranks have so long to appear: their models are built meanwhile
SEND_BYTES = 4 << 20  # a rank that is at work must not keep the next batch's numbers from being sent
_CREDENTIALS = struct.Struct("3i")


def main() -> None:
    """`python -m vlarge.data.service PARENT FD`, a listening socket; the feed comes as JSON on standard input."""
    parent, number = map(int, sys.argv[1:])
    end_with_parent(parent)
    listener = socket.socket(fileno=number)
    listener.settimeout(CONNECT_S)
    feed = Feed.from_json(sys.stdin.read())
    with ThreadPoolExecutor(1) as pool:
        service = pool.submit(feed.open, apart=True)
        for number in range(feed.node.ranks_per_node):
            if (connection := _accept(listener)) is None:
                _end_early(number, feed.node.ranks_per_node)
            threading.Thread(target=_serve, args=(connection, service), daemon=True).start()
    threading.Event().wait()  # the end is the first rank's, or the parent's


def _end_early(num_connected: int, num_expected: int) -> NoReturn:
    print(
        f"the data service ends: {num_connected} of the {num_expected} processes of this node have come for their data,"
        f" and for {CONNECT_S:.0f} s no other one; see what became of them",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def _accept(listener: socket.socket) -> socket.socket | None:
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] == os.getuid():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            return connection
        connection.close()


def _serve(connection: socket.socket, opening: Future[NodeService]) -> None:
    requests = Receiver(connection)
    try:
        service = opening.result()
    except BaseException as error:
        return _fail(connection, error)
    try:
        (rank,) = struct.unpack("<Q", requests.exactly(8))
        socket.send_fds(connection, [struct.pack("<Q", service.arena.slot_bytes)], [service.arena.file])
        wanted: queue.Queue[float] = queue.Queue()
        threading.Thread(target=_answer, args=(connection, service, rank, wanted), daemon=True).start()
        while True:
            kind, number = REQUEST.unpack(requests.exactly(REQUEST.size))
            if kind == NEXT:
                wanted.put(number / 1000)
            elif kind == RELEASE:
                service.release(number)
    except (Gone, OSError):
        os._exit(0)  # a rank has left: the run is over, or about to be


def _answer(connection: socket.socket, service: NodeService, rank: int, wanted: queue.Queue[float]) -> None:
    try:
        while True:
            patience_s = wanted.get()
            while (ready := service.take(rank, patience_s)) is None:
                send(connection, {"late": service.late()})
            header, arrays = describe(ready)
            send(connection, {**header, "counters": service.counters()}, arrays)
    except Gone:
        os._exit(0)
    except BaseException as error:
        _fail(connection, error)


def _fail(connection: socket.socket, error: BaseException) -> None:
    with contextlib.suppress(Gone, OSError):
        send_error(connection, error)
