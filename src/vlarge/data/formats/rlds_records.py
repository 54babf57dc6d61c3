"""TFRecord files: where each record lies, and whether its checksums are right.

A record is: length (uint64), checksum of the length, payload, checksum of the payload; little endian, checksums are
masked CRC-32C. See tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from vlarge.data.check import BrokenFile
from vlarge.data.fetch import MAX_AHEAD_BYTES, Store

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
FRAME_BYTES = HEADER.size + CHECKSUM.size
# An episode of ten minutes with four cameras takes about half of it. Parsing takes up to three times its size.
MAX_RECORD_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Record:
    """The record at byte `offset`: its payload of `num_bytes`, or what is wrong with it.

    is_end: nothing after it can be found in the file.
    """

    offset: int
    num_bytes: int
    payload: bytes
    fault: BrokenFile | None = None
    is_end: bool = False


def file_size(store: Store, file: str) -> int | None:
    """Size in bytes; None when there is no such file."""
    return store.size(file) if store.exists(file) else None


def read_record(store: Store, file: str, offset: int) -> bytes:
    """The payload of the record at `offset`. Raises BrokenFile when it is not whole."""
    record = next(iter_records(store, file, offset), None)
    if record is None:
        raise BrokenFile("truncated_record", f"the file ends before the record at byte {offset}")
    if record.fault:
        raise record.fault
    return record.payload


def iter_records(store: Store, file: str, offset: int = 0) -> Iterator[Record]:
    """Every record from `offset` on, one in memory at a time; no length is believed before it is checked.

    A record whose payload is damaged, or only the checksum of its length, is passed over; a damaged length ends the
    file, because nothing else says where the next record begins. Raises BrokenFile when there is no such file.
    """
    size, first = file_size(store, file), offset
    if size is None:
        raise BrokenFile("missing_shard", "the file does not exist")
    header = store.read(file, offset, offset + HEADER.size)
    while offset < size:
        left = size - offset
        if left < FRAME_BYTES or len(header) < HEADER.size:
            yield _end(offset, "truncated_record", f"the file ends at {size} bytes, inside the record at {offset}")
            return
        length, checksum = HEADER.unpack(header)
        is_sure = checksum == masked_crc(header[:8])
        if length > left - FRAME_BYTES:
            yield _overlong(offset, length, size, is_sure)
            return
        record, header = _read(store, file, offset, length, is_sure, min(offset - first, MAX_AHEAD_BYTES))
        yield record
        if record.is_end:
            return
        offset += FRAME_BYTES + length


def _overlong(offset: int, length: int, size: int, is_sure: bool) -> Record:
    if is_sure:
        detail = f"the record at byte {offset} has {length} bytes, the file ends at {size}"
        return _end(offset, "truncated_record", detail)
    return _lost(offset)


def _lost(offset: int) -> Record:
    detail = f"the length of the record at byte {offset} is damaged: it and what follows cannot be found"
    return _end(offset, "bad_checksum", detail)


def _end(offset: int, kind: str, detail: str) -> Record:
    return Record(offset, 0, b"", BrokenFile(kind, detail), is_end=True)


def _read(store: Store, file: str, offset: int, length: int, is_sure: bool, ahead_bytes: int) -> tuple[Record, bytes]:
    # The record, whose end lies in the file, and the next header: one read for both.
    start, stop = offset + HEADER.size, offset + FRAME_BYTES + length
    if length > MAX_RECORD_BYTES:
        if not is_sure:
            return _lost(offset), b""
        detail = f"the record at byte {offset} has {length} bytes, more than {MAX_RECORD_BYTES}"
        fault = BrokenFile("record_too_large", detail)
        return Record(offset, length, b"", fault), store.read(file, stop, stop + HEADER.size)
    body = store.read(file, start, stop + HEADER.size, ahead_bytes=ahead_bytes)
    payload, header = body[:length], body[length + CHECKSUM.size :]
    if len(body) < length + CHECKSUM.size:
        return _end(offset, "truncated_record", f"the file shrank while the record at byte {offset} was read"), header
    is_whole = CHECKSUM.unpack_from(body, length)[0] == masked_crc(payload)
    if not is_sure and not is_whole:
        return _lost(offset), header
    if is_sure and is_whole:
        return Record(offset, length, payload), header
    what = "its payload" if is_sure else "its length"
    fault = BrokenFile("bad_checksum", f"the checksum of {what} is wrong, record at byte {offset}")
    return Record(offset, length, b"", fault), header


def masked_crc(data: bytes) -> int:
    """The masked CRC-32C by which TFRecord guards bytes."""
    import google_crc32c

    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
