"""The process of one decoding thread: `python -m vlarge.data.service.decoding PARENT SOCKET ARENA SLOT_BYTES`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from functools import lru_cache
from typing import Any

from vlarge.data.index import Dataset
from vlarge.data.service.arena import map_slot
from vlarge.data.service.decoder import Pictures, fill, image_of
from vlarge.data.service.feed import Feed
from vlarge.data.service.lifetime import end_with_parent
from vlarge.data.service.messages import Gone, Receiver, send, send_error


def main() -> None:
    """The feed comes as JSON on standard input, then requests through the socket, until it is closed."""
    parent, number, arena, slot_bytes = map(int, sys.argv[1:])
    end_with_parent(parent)
    with contextlib.suppress(OSError):  # some sandboxes refuse it, and it is only a courtesy
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # a trainer that wakes up goes first
    feed = Feed.from_json(sys.stdin.read())
    slot_of = lru_cache(maxsize=None)(lambda slot: map_slot(arena, slot, slot_bytes))
    connection = socket.socket(fileno=number)
    requests = Receiver(connection)
    datasets: list[Dataset] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if not datasets:
            datasets.extend(feed.datasets())
        wanted = [Pictures(*each) for each in request["wanted"]]
        outs = [[image_of(slot_of(slot), i, feed.image_shape) for slot, i in each.images] for each in wanted]
        fill(datasets, wanted, outs, feed.padding)
        return {"decoded": sum(d.num_decoded for d in datasets), "revisions": [d.revision for d in datasets]}

    with contextlib.suppress(Gone, OSError):
        while True:
            request, _ = requests.message(None)
            try:
                found = answer(request)
            except Exception as error:
                send_error(connection, error)
            else:
                send(connection, found)


if __name__ == "__main__":
    main()
