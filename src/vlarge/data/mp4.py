"""The sample table of an mp4: where each packet lies, its presentation time and whether decoding can start there.

Read from the `moov` box alone (ISO/IEC 14496-12), without touching the media, so that a dataset's frames can be counted
and addressed by integer. Files with fragments or unusual edit lists are scanned packet by packet by FFmpeg instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.check import BrokenFile
from vlarge.data.fetch import LocalStore, Store

# Sample entry -> (FFmpeg's decoder, box that holds its extradata).
CODECS = {b"avc1": ("h264", b"avcC"), b"hvc1": ("hevc", b"hvcC"), b"hev1": ("hevc", b"hvcC"), b"av01": ("av1", b"av1C")}
MAX_MOOV_BYTES = 1 << 30
MAX_BOXES = 10_000
TOP_BOXES = {b"ftyp", b"styp", b"mdat", b"moov", b"free", b"skip", b"wide", b"moof"}
EXTENT_BYTES = 1 << 20
MAX_GAP_BYTES = 1 << 14


@dataclass(frozen=True, eq=False)
class VideoFile:
    """Packets of a video track in decode order (suffix P), and its frames in presentation order (suffix F).

    pts_P: int64 ticks of `time_base` seconds. frame_packets_F: the packet of each frame that is shown.
    is_turned: whether players turn or mirror its pictures; decoded frames are as stored.
    """

    store: Store
    file: str
    codec: str
    extradata: bytes
    height: int
    width: int
    time_base: Fraction
    offset_P: np.ndarray
    size_P: np.ndarray
    pts_P: np.ndarray
    is_key_P: np.ndarray
    frame_packets_F: np.ndarray
    file_bytes: int
    is_turned: bool = False

    @property
    def path(self) -> str:
        """Where it lies, for messages."""
        return self.store.path(self.file)

    def read(self, start: int, stop: int) -> bytes:
        """Its bytes [start, stop), fewer where it ends."""
        return self.store.read(self.file, start, stop)

    @property
    def num_frames(self) -> int:
        return len(self.frame_packets_F)

    @property
    def num_bytes(self) -> int:
        """Memory of this table, with what it derives."""
        stored = (self.offset_P, self.size_P, self.pts_P, self.is_key_P, self.frame_packets_F)
        return sum(a.nbytes for a in stored) + 24 * self.num_frames

    @cached_property
    def pts_F(self) -> np.ndarray:
        return self.pts_P[self.frame_packets_F]

    @cached_property
    def keys_K(self) -> np.ndarray:
        """Packets where decoding can start, in order of presentation; the first one at least."""
        keys = np.flatnonzero(self.is_key_P) if self.is_key_P.any() else np.zeros(1, np.int64)
        return keys[np.argsort(self.pts_P[keys], kind="stable")]

    @cached_property
    def key_pts_K(self) -> np.ndarray:
        """When each of these is shown."""
        return self.pts_P[self.keys_K]

    @cached_property
    def last_packet_F(self) -> np.ndarray:
        """The last packet, in decode order, of all frames shown up to this one."""
        return np.maximum.accumulate(self.frame_packets_F)

    def time_s(self, frame: int) -> float:
        """Seconds of one frame, from the start of the track's time line."""
        return float(self.pts_F[frame] * self.time_base)

    @cached_property
    def complete_F(self) -> np.ndarray:
        """bool: whether the file holds all bytes that decoding the frame may need."""
        missing = np.flatnonzero(self.offset_P + self.size_P > self.file_bytes)
        return self.frame_packets_F < (missing[0] if len(missing) else len(self.pts_P))


class _Unusual(Exception):
    # Valid, but not for this parser: FFmpeg's demuxer decides.
    pass


def read_video_file(store: Store, file: str) -> VideoFile:
    """The table of the first video track. Raises BrokenFile when there is none, naming what is wrong with the file."""
    if not store.exists(file):
        raise BrokenFile("missing_mp4", "the file does not exist")
    size = store.size(file)
    if size == 0:
        raise BrokenFile("empty_mp4", "the file has 0 bytes (an aborted download?)")
    moov = _read_moov(store, file, size)
    try:
        return _from_moov(store, file, moov, size)
    except BrokenFile:
        raise
    except (_Unusual, KeyError, struct.error, ValueError, IndexError, ArithmeticError):
        return scan_packets(store, file)


def read_local_video(path: Path) -> VideoFile:
    """`read_video_file` of one local file."""
    return read_video_file(LocalStore(path.parent), path.name)


def read_packets(video: VideoFile, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of the packets [start, stop) in decode order. Neighbours are read together.

    Raises InputError when the file ends before one does.
    """
    first = start
    while first < stop:
        last = _end_of_extent(video, first, stop)
        begin = int(video.offset_P[first:last].min())
        starts = video.offset_P[first:last] - begin
        ends = starts + video.size_P[first:last]
        data = video.read(begin, begin + int(ends.max()))
        for index, start, end in zip(range(first, last), starts.tolist(), ends.tolist(), strict=True):
            if end > len(data):
                raise InputError(f"{video.path}: the file ends inside packet {index}; it is truncated")
            yield index, data[start:end]
        first = last


def _end_of_extent(video: VideoFile, first: int, stop: int) -> int:
    # Packets in file order with little between them (another track's), up to a size worth one read.
    begin = int(video.offset_P[first])
    end = begin + int(video.size_P[first])
    for index in range(first + 1, stop):
        offset, size = int(video.offset_P[index]), int(video.size_P[index])
        if not end <= offset <= end + MAX_GAP_BYTES or offset + size > begin + EXTENT_BYTES:
            return index
        end = offset + size
    return stop


def scan_packets(store: Store, file: str) -> VideoFile:
    """The same table by demuxing the whole file with FFmpeg: for any mp4, at the price of reading all of it."""
    import av

    try:
        # Of this format only: others, such as playlists, name further files and addresses.
        with av.open(store.open(file), "r", format="mp4", metadata_errors="replace") as container:
            stream = container.streams.video[0]
            rows = [
                (p.pos, p.size, p.pts, p.is_keyframe, not p.is_discard)
                for p in container.demux(stream)
                if p.pts is not None and p.dts is not None
            ]
            decoder = stream.codec_context
            time_base = Fraction(stream.time_base or 1)
    except MemoryError:
        raise  # of this machine, though FFmpeg counts it among its own
    except (av.error.FFmpegError, IndexError, ArithmeticError, UnicodeError) as error:
        raise BrokenFile("unreadable_mp4", f"FFmpeg finds no video in it ({error})") from error
    if decoder is None or not decoder.height or not decoder.width or any((row[0] or 0) < 0 for row in rows):
        raise BrokenFile("unreadable_mp4", "FFmpeg does not know its codec, size or where its packets lie")
    offset_P, size_P, pts_P, is_key_P, is_shown_P = np.array(rows, np.int64).reshape(-1, 5).T
    shown = np.flatnonzero(is_shown_P)
    return VideoFile(
        store=store,
        file=file,
        codec="av1" if decoder.name == "libdav1d" else decoder.name,
        extradata=bytes(decoder.extradata or b""),
        height=decoder.height,
        width=decoder.width,
        time_base=time_base,
        offset_P=offset_P,
        size_P=size_P,
        pts_P=pts_P,
        is_key_P=is_key_P.astype(bool),
        frame_packets_F=shown[np.argsort(pts_P[shown], kind="stable")],
        file_bytes=store.size(file),
    )


def _read_moov(store: Store, file: str, file_bytes: int) -> bytes:
    # Walk the top-level boxes; only their headers are read.
    position = 0
    kinds: set[tuple[int, bytes]] = set()
    while position + 8 <= file_bytes and len(kinds) < MAX_BOXES:
        header = store.read(file, position, position + 16)
        size, kind = struct.unpack_from(">I4s", header)
        head = 8
        if size == 1 and len(header) == 16:
            size, head = struct.unpack_from(">Q", header, 8)[0], 16
        size = size or file_bytes - position
        kinds.add((position, kind))
        if size < head:
            break
        if kind == b"moov" and position + size <= file_bytes and size < MAX_MOOV_BYTES:
            return store.read(file, position + head, position + size)
        position += size
    if not {kind for _, kind in kinds} & TOP_BOXES:
        raise BrokenFile("unreadable_mp4", "it is no mp4 file")
    raise BrokenFile(
        "moov_missing", "it has no moov box (an interrupted recording or download?); nothing can be decoded"
    )


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        head = 8
        if size == 1:
            size, head = struct.unpack_from(">Q", data, position + 8)[0], 16
        size = size or len(data) - position
        if size < head:
            raise _Unusual
        yield kind, data[position + head : position + size]
        position += size


def _box(data: bytes, *kinds: bytes) -> bytes:
    for kind in kinds:
        data = dict(_boxes(data))[kind]
    return data


def _video_track(moov: bytes) -> bytes:
    if any(kind == b"mvex" for kind, _ in _boxes(moov)):
        raise _Unusual  # fragmented
    for kind, track in _boxes(moov):
        if kind == b"trak" and _box(track, b"mdia", b"hdlr")[8:12] == b"vide":
            return track
    raise _Unusual


def _table(data: bytes, columns: int, dtype: str = ">u4") -> np.ndarray:
    # A full box with a count and rows of 32- or 64-bit numbers.
    count = struct.unpack_from(">I", data, 4)[0]
    return np.frombuffer(data, dtype, count * columns, 8).astype(np.int64).reshape(count, columns)


def _from_moov(store: Store, file: str, moov: bytes, file_bytes: int) -> VideoFile:
    track = _video_track(moov)
    sample_table = dict(_boxes(_box(track, b"mdia", b"minf", b"stbl")))
    size_P = _sizes(sample_table[b"stsz"], file_bytes)
    pts_P = _composition_times(sample_table, len(size_P)) - _edit_shift(track, moov)
    order_F = np.argsort(pts_P, kind="stable")
    if len(pts_P) and pts_P[order_F[0]] != 0:
        raise _Unusual
    codec, extradata, height, width = _sample_entry(sample_table[b"stsd"])
    is_key_P = np.ones(len(size_P), bool)
    if b"stss" in sample_table:
        is_key_P[:] = False
        keys = _table(sample_table[b"stss"], 1)[:, 0] - 1
        if len(keys) and keys.min() < 0:
            raise _Unusual
        is_key_P[keys] = True
    return VideoFile(
        store=store,
        file=file,
        codec=codec,
        extradata=extradata,
        height=height,
        width=width,
        time_base=Fraction(1, _timescale(_box(track, b"mdia", b"mdhd"))),
        offset_P=_offsets(sample_table, size_P),
        size_P=size_P,
        pts_P=pts_P,
        is_key_P=is_key_P,
        frame_packets_F=order_F,
        file_bytes=file_bytes,
        is_turned=_is_turned(_box(track, b"tkhd")),
    )


def _is_turned(header: bytes) -> bool:
    # tkhd: dates, track and duration (24 or 36 bytes), 16 more, then the matrix that pictures are shown through.
    a, b, _, c, d = struct.unpack_from(">5i", header, 52 if header[0] else 40)
    return bool((b, c) != (0, 0) or a < 0 or d < 0)


def _timescale(header: bytes) -> int:
    # mdhd and mvhd: two dates of 4 or 8 bytes, the time scale, and the duration in as many bytes as a date.
    return int(struct.unpack_from(">I", header, 20 if header[0] else 12)[0])


def _duration_s(header: bytes) -> float:
    ticks = struct.unpack_from(">Q", header, 24)[0] if header[0] else struct.unpack_from(">I", header, 16)[0]
    return float(ticks / _timescale(header))


def _sizes(stsz: bytes, file_bytes: int) -> np.ndarray:
    uniform, count = struct.unpack_from(">II", stsz, 4)
    if count > file_bytes:
        raise BrokenFile("unreadable_mp4", f"its table promises {count} packets, more than the file has bytes")
    if uniform:
        return np.full(count, uniform, np.int64)
    return np.frombuffer(stsz, ">u4", count, 12).astype(np.int64)


def _composition_times(sample_table: dict[bytes, bytes], num_packets: int) -> np.ndarray:
    counts, deltas = _table(sample_table[b"stts"], 2).T
    durations = _run_lengths(counts, deltas, num_packets)
    times = np.cumsum(durations) - durations
    if b"ctts" in sample_table:
        counts, shifts = _table(sample_table[b"ctts"], 2, ">i4").T
        times = times + _run_lengths(counts, shifts, num_packets)
    return times


def _run_lengths(counts: np.ndarray, values: np.ndarray, num_packets: int) -> np.ndarray:
    if counts.min(initial=0) < 0 or counts.sum() != num_packets:
        raise _Unusual
    return np.repeat(values, counts)


def _edit_shift(track: bytes, moov: bytes) -> int:
    # The usual single edit starts the presentation at the first frame; anything else is FFmpeg's business.
    boxes = dict(_boxes(track))
    if b"edts" not in boxes:
        return 0
    edit_list = _box(boxes[b"edts"], b"elst")
    if edit_list[0] or struct.unpack_from(">I", edit_list, 4)[0] != 1:
        raise _Unusual
    duration, media_time = struct.unpack_from(">Ii", edit_list, 8)
    shown_s = duration / _timescale(_box(moov, b"mvhd"))
    header = _box(track, b"mdia", b"mdhd")
    if media_time < 0 or shown_s < _duration_s(header) - 2e-3 - media_time / _timescale(header):
        raise _Unusual
    return int(media_time)


def _offsets(sample_table: dict[bytes, bytes], size_P: np.ndarray) -> np.ndarray:
    # Packets lie one after the other inside chunks; stsc says how many from which chunk on.
    wide = b"co64" in sample_table
    chunks = _table(sample_table[b"co64" if wide else b"stco"], 1, ">u8" if wide else ">u4")[:, 0]
    first, per_chunk, _ = _table(sample_table[b"stsc"], 3).T
    counts = np.repeat(per_chunk, np.diff(np.append(first - 1, len(chunks))))
    if counts.sum() != len(size_P):
        raise _Unusual
    if chunks.min(initial=0) < 0:
        raise _Unusual  # offsets of 64 bits
    before = np.cumsum(size_P) - size_P
    chunk_start = np.cumsum(counts) - counts
    return before + np.repeat(chunks - before[chunk_start], counts)


def _sample_entry(stsd: bytes) -> tuple[str, bytes, int, int]:
    # One visual sample entry: 8 bytes of box header, 78 of fixed fields, then the codec's own boxes.
    (kind, entry), *others = _boxes(stsd[8:])
    if others or kind not in CODECS:
        raise _Unusual
    width, height = struct.unpack_from(">HH", entry, 24)
    if not width or not height:
        raise _Unusual
    codec, box = CODECS[kind]
    return codec, _box(entry[78:], box), height, width
