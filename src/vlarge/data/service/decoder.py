"""What fills pictures into batches: in this process, or in a process of its own for each thread of a service.

Python runs one thread of a process at a time, which costs decoding threads of one process a fifth of their speed.
A process of its own also ends alone when a file crashes the decoder.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.check import Unreachable
from vlarge.data.index import Dataset
from vlarge.data.service.arena import Arena
from vlarge.data.service.lifetime import how_ended, start
from vlarge.data.service.messages import Gone, Receiver, raise_error, send

log = logging.getLogger(__name__)
MAX_STARTS = 3  # for one request
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


class Pictures(NamedTuple):
    """Frames (ascending) of one camera of an episode, and the (slot, image in it) that each goes to.

    part: number of the dataset; episode: its position in it.
    """

    part: int
    episode: int
    camera: str
    frames: Sequence[int]
    images: Sequence[tuple[int, int]]


class Crashed(InputError):
    """Some of the pictures that were asked for end the decoder."""


class Decoder(Protocol):
    """Of one thread. num_decoded: frames decoded elsewhere than by the datasets of this process."""

    num_decoded: int

    def fill(self, wanted: Sequence[Pictures]) -> None:
        """Write the pictures. Raises InputError for what cannot be decoded, Unreachable for what cannot be had."""

    def close(self) -> None: ...


class Here:
    """Decodes in the thread that asks."""

    num_decoded = 0

    def __init__(self, datasets: Sequence[Dataset], image_shape: tuple[int, int], padding: str, arena: Arena) -> None:
        self._datasets = datasets
        self._shape, self._padding = image_shape, padding
        self._arena = arena

    def fill(self, wanted: Sequence[Pictures]) -> None:
        images = [[self._image(slot, i) for slot, i in each.images] for each in wanted]
        fill(self._datasets, wanted, images, self._padding)

    def _image(self, slot: int, number: int) -> np.ndarray:
        return image_of(self._arena.whole(slot), number, self._shape)

    def close(self) -> None: ...


class Apart:
    """Decodes in a process of its own, which is started again when it has died.

    Killed from outside, it does its work again. Crashed, it tells whoever asked that the pictures cannot be decoded:
    asked for one by one, all but those that crash a decoder come.
    """

    def __init__(self, feed: str, revisions: Sequence[str], arena: Arena) -> None:
        self._feed = feed
        self._revisions = list(revisions)
        self._arena = arena
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._decoded_before = self.num_decoded = 0

    def fill(self, wanted: Sequence[Pictures]) -> None:
        for _ in range(MAX_STARTS):
            try:
                if self._process is None:
                    self._start()
                answer = self._ask({"wanted": list(wanted)})
            except (Gone, OSError) as error:
                cause, code = error, self._end()
                log.warning("a process that decodes has ended (%s); another one goes on", how_ended(code or 0))
                if code is not None and -code in CRASHES:
                    how = signal.Signals(-code).name
                    raise Crashed(f"the decoder crashed ({how}); leave them out") from None
                continue
            self.num_decoded = self._decoded_before + answer["decoded"]
            return
        how = how_ended(code) if code is not None else "before it had started"
        raise RuntimeError(f"a process that decodes has ended {MAX_STARTS} times, the last time {how}") from cause

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._connection is not None
        send(self._connection, request)
        answer, _ = self._receiver.message(None)
        raise_error(answer, RuntimeError)
        return answer

    def _start(self) -> None:
        # The kernel ends it with the thread that starts it, which is the one that asks.
        ours, theirs = socket.socketpair()
        self._connection, self._receiver = ours, Receiver(ours)
        files = [theirs.fileno(), self._arena.file]
        with theirs:
            self._process = start("vlarge.data.service.decoding", [*files, self._arena.slot_bytes], files, self._feed)
        try:
            opened = self._ask({"wanted": []})
        except InputError as error:
            raise Unreachable(f"a process that decodes cannot open the data any more: {error}") from error
        if opened["revisions"] != self._revisions:
            sources = json.loads(self._feed)["sources"]
            pairs = zip(sources, opened["revisions"], self._revisions, strict=True)
            changed = ", ".join(source["path"] for source, now, before in pairs if now != before)
            raise Unreachable(f"{changed} has changed since this run began; see to it and start again")

    def _end(self) -> int | None:
        if self._connection is not None:
            self._connection.close()
        if self._process is None:
            return None
        self._process.kill()
        code = self._process.wait()
        self._process, self._decoded_before = None, self.num_decoded
        return code


def fill(
    datasets: Sequence[Dataset], wanted: Sequence[Pictures], outs: Sequence[list[np.ndarray]], padding: str
) -> None:
    """Decode each of `wanted` into its arrays, uint8 [H, W, 3]."""
    for each, images in zip(wanted, outs, strict=True):
        dataset = datasets[each.part]
        dataset.fill_frames(dataset.episodes[each.episode], each.camera, each.frames, images, padding)


def image_of(slot: np.ndarray, number: int, shape: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, 3]: one image of a slot's bytes."""
    size = shape[0] * shape[1] * 3
    return slot[number * size : (number + 1) * size].reshape(*shape, 3)
