"""The process of one decoding thread: `python -m vlarge.data.service.decoding SOCKET ARENA SLOT_BYTES`."""

from __future__ import annotations

import contextlib
import socket
import sys
import traceback
from functools import lru_cache
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import Unreachable
from vlarge.data.service.arena import map_slot
from vlarge.data.service.decoder import Pictures, fill, image_of
from vlarge.data.service.feed import Feed
from vlarge.data.service.messages import Gone, Receiver, send
from vlarge.data.service.process import end_with_parent


def main() -> None:
    """The feed comes as JSON on standard input, then requests through the socket, until it is closed."""
    end_with_parent()
    number, arena, slot_bytes = map(int, sys.argv[1:])
    feed = Feed.from_json(sys.stdin.read())
    datasets = feed.datasets()
    slot_of = lru_cache(maxsize=None)(lambda slot: map_slot(arena, slot, slot_bytes))
    connection = socket.socket(fileno=number)
    requests = Receiver(connection)
    with contextlib.suppress(Gone, OSError):
        while True:
            request, _ = requests.message(None)
            wanted = [_pictures(each) for each in request["wanted"]]
            outs = [[image_of(slot_of(slot), i, feed.image_shape) for slot, i in each.images] for each in wanted]
            answer: dict[str, Any] = {}
            try:
                fill(datasets, wanted, outs)
            except Unreachable as error:
                answer = {"kind": "Unreachable", "error": str(error)}
            except InputError as error:
                answer = {"kind": "InputError", "error": str(error)}
            except Exception as error:
                answer = {"kind": "", "error": "".join(traceback.format_exception(error))}
            send(connection, {**answer, "decoded": sum(dataset.num_decoded for dataset in datasets)})


def _pictures(data: dict[str, Any]) -> Pictures:
    images = tuple((slot, number) for slot, number in data["images"])
    return Pictures(data["part"], data["episode"], data["camera"], tuple(data["frames"]), images)


if __name__ == "__main__":
    main()
