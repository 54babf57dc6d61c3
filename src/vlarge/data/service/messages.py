"""What a node's service and its ranks say to each other: numbers as raw bytes, the rest as JSON, nothing pickled."""

from __future__ import annotations

import json
import math
import socket
import struct
import traceback
from dataclasses import fields
from typing import Any

import numpy as np

from vlarge.contracts import InputError, PackedBatch, SampleId
from vlarge.data.check import Unreachable
from vlarge.data.service.batches import Ready, Replacement

REQUEST = struct.Struct("<BQ")  # kind and number
NEXT, RELEASE = 1, 2  # next: wait at most so many milliseconds before telling why; release: a slot
_HEAD = struct.Struct("<IQ")
ALIGNED = 64
CHUNK_BYTES = 1 << 18
ARRAYS = [item.name for item in fields(PackedBatch) if item.name != "images_NHWC"]


_KINDS: dict[str, type[Exception]] = {"unreachable": Unreachable, "input": InputError}  # the narrower first


class Gone(Exception):
    """The other side has closed the connection."""


def send(connection: socket.socket, header: dict[str, Any], arrays: list[np.ndarray] | None = None) -> None:
    """Header and arrays, each padded, so that whoever receives them may use them where they lie. Raises Gone."""
    text = json.dumps(header).encode()
    text += b" " * _padding(_HEAD.size + len(text))
    body = b"".join(a.tobytes() + bytes(_padding(a.nbytes)) for a in arrays or [])
    try:
        connection.sendall(_HEAD.pack(len(text), len(body)) + text + body)
    except ConnectionError as error:
        raise Gone from error


def _padding(size: int) -> int:
    return -size % ALIGNED


def send_error(connection: socket.socket, error: BaseException) -> None:
    """What went wrong: a user's matter as its text, our own as its traceback."""
    kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "")
    text = str(error) if kind else "".join(traceback.format_exception(error))
    send(connection, {"error": text, "kind": kind})


def raise_error(header: dict[str, Any], ours: type[Exception]) -> None:
    """Raise what `send_error` told, if it did; what was no user's matter as `ours`."""
    if "error" in header:
        raise _KINDS.get(header["kind"], ours)(header["error"])


class Receiver:
    """Reads whole messages. A time-out keeps what has arrived for the next call."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._chunk = memoryview(bytearray(CHUNK_BYTES))

    def message(self, timeout_s: float | None) -> tuple[dict[str, Any], memoryview]:
        """(header, body); the body may be written to. Raises TimeoutError, or Gone."""
        self._fill(_HEAD.size, timeout_s)
        text, body = _HEAD.unpack_from(self._buffer)
        whole = memoryview(self.exactly(_HEAD.size + text + body, timeout_s))
        return json.loads(bytes(whole[_HEAD.size : _HEAD.size + text])), whole[_HEAD.size + text :]

    def exactly(self, size: int, timeout_s: float | None = None) -> bytearray:
        """The next `size` bytes."""
        self._fill(size, timeout_s)
        taken, self._buffer = self._buffer, self._buffer[size:]
        del taken[size:]
        return taken

    def push(self, data: bytes) -> None:
        """Bytes that were read off the connection by other means."""
        self._buffer += data

    def _fill(self, size: int, timeout_s: float | None) -> None:
        self._connection.settimeout(timeout_s)
        while len(self._buffer) < size:
            try:
                num_bytes = self._connection.recv_into(self._chunk)
            except ConnectionError as error:
                raise Gone from error
            if not num_bytes:
                raise Gone
            self._buffer += self._chunk[:num_bytes]


def describe(ready: Ready) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A message that holds everything of a batch but its images."""
    arrays = [getattr(batch, name) for batch in ready.batches for name in ARRAYS]
    header = {
        "step": ready.step,
        "slot": ready.slot,
        "num_images": ready.num_images,
        "arrays": [[a.dtype.str, a.shape] for a in arrays],
        "replacements": [[r.bad, r.used, r.reason] for r in ready.replacements],
    }
    return header, arrays


def restore(header: dict[str, Any], body: memoryview) -> Ready:
    """Inverse of `describe`. The arrays lie in `body`."""
    arrays, start = [], 0
    for dtype, shape in header["arrays"]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays.append(np.frombuffer(body[start : start + size], dtype).reshape(shape))
        start += size + _padding(size)
    none = np.zeros((0, 0, 0, 3), np.uint8)
    batches = [
        PackedBatch(images_NHWC=none, **dict(zip(ARRAYS, arrays[i : i + len(ARRAYS)], strict=True)))
        for i in range(0, len(arrays), len(ARRAYS))
    ]
    replacements = [Replacement(SampleId(*bad), SampleId(*used), why) for bad, used, why in header["replacements"]]
    return Ready(header["step"], header["slot"], batches, header["num_images"], replacements)
