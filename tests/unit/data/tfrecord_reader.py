"""An independent reader of TFRecord files of tf.train.Example: the framing and the protobuf wire format, by hand.

Example {1: Features {1: entry {1: key, 2: Feature {1: BytesList | 2: FloatList | 3: Int64List, each {1: values}}}}}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Values = list[bytes] | np.ndarray


def read_examples(path: Path) -> Iterator[dict[str, Values]]:
    """Every record as feature name -> list of bytes, float32 [n] or int64 [n]. Checksums are not looked at."""
    data, position = path.read_bytes(), 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        yield _example(data[position + 12 : position + 12 + length])
        position += length + 16


def _example(data: bytes) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for _, features in _fields(data):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            found[parts[1].decode()] = _feature(parts[2])
    return found


def _feature(data: bytes) -> Values:
    [(kind, values)] = list(_fields(data))
    parts = [value for _, value in _fields(values)]
    if kind == 1:
        return parts
    packed = b"".join(parts)
    return np.frombuffer(packed, "<f4") if kind == 2 else np.array(list(_varints(packed)), np.int64)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    # Of a message: (field number, content); all contents here have a length in front or are 4 bytes.
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag & 7 == 5:
            size = 4
        elif tag & 7 == 2:
            size, position = _varint(data, position)
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value - (1 << 64) if value >> 63 else value
