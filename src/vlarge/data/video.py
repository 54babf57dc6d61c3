"""Frames by integer index out of an mp4: each group of pictures is decoded once, each frame checked against its pts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.mp4 import VideoFile, read_packets

if TYPE_CHECKING:
    import av

MAX_IDLE_DECODERS = 8  # of each thread
_THREAD = threading.local()
DECODERS = {"av1": "libdav1d"}  # where FFmpeg's decoder has another name than the codec


@dataclass(frozen=True)
class Run:
    """Packets [start, stop) in decode order, to be decoded in one go for the frames `frames` (ascending)."""

    start: int
    stop: int
    frames: tuple[int, ...]


def starts_afresh(video: VideoFile, frames: np.ndarray) -> np.ndarray:
    """bool [n]: whether each of these frames (ascending) is decoded without a packet that the ones before it need."""
    starts, stops = _packet_spans(video, frames)
    return np.append(True, starts[1:] >= stops[:-1])[: len(starts)]


def _packet_spans(video: VideoFile, frames: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Packets [start, stop) that each frame needs when it is decoded by itself.
    frames = np.asarray(frames, np.int64)
    before = np.searchsorted(video.key_pts_K, video.pts_F[frames], side="right") - 1
    starts = np.where(before >= 0, video.keys_K[before], 0)
    return starts, video.last_packet_F[frames] + 1


def plan_runs(video: VideoFile, frames: Sequence[int]) -> list[Run]:
    """The least decoding for these frames (ascending): from the key frame before each one; no packet in two runs.

    The key frame is the last one *shown* no later than the frame: after an open group of pictures, packets that follow
    a key frame may be shown before it and need the group before. Raises InputError for a frame that is not there.
    """
    if not len(frames):
        return []
    if not 0 <= frames[0] <= frames[-1] < video.num_frames:
        raise InputError(f"{video.path}: frame {frames[-1]} was asked for, the video has {video.num_frames}")
    starts, stops = _packet_spans(video, frames)
    stops = np.maximum.accumulate(stops)
    firsts = [0, *(np.flatnonzero(starts[1:] > stops[:-1]) + 1).tolist()]
    lasts = [*firsts[1:], len(frames)]
    return [Run(int(starts[i]), int(stops[j - 1]), tuple(frames[i:j])) for i, j in zip(firsts, lasts, strict=True)]


def decode_runs(video: VideoFile, runs: Sequence[Run]) -> Iterator[av.VideoFrame]:
    """The decoded picture of each frame of these runs, in their order.

    Raises InputError naming file and frame when one cannot be decoded or does not carry its pts.
    """
    for run in runs:
        yield from _decode_run(video, run)


def num_packets(video: VideoFile, frames: Sequence[int]) -> int:
    """How many packets are decoded for these frames."""
    return sum(run.stop - run.start for run in plan_runs(video, frames))


def _decode_run(video: VideoFile, run: Run) -> Iterator[av.VideoFrame]:
    import av

    wanted = {int(video.pts_F[frame]): frame for frame in run.frames}
    order = iter(run.frames)
    expected = next(order)
    first_pts = int(video.pts_P[run.start])
    try:
        for picture in _pictures(video, run):
            if expected < 0 or picture.pts is None or picture.pts < first_pts:
                continue  # not asked for, or shown before the key frame and refers to what was not decoded
            frame = wanted.get(picture.pts)
            if picture.is_corrupt or frame not in (None, expected):
                break  # a damaged picture also spoils those that refer to it
            if frame is not None:
                yield picture
                expected = next(order, -1)
        if expected < 0:
            return
    except MemoryError:
        raise  # of this machine, though FFmpeg counts it among its own
    except av.error.FFmpegError as error:
        raise InputError(f"{video.path}: frame {expected} cannot be decoded ({error}); mend or leave out") from error
    raise InputError(f"{video.path}: frame {expected} is damaged or does not carry its time stamp; mend or leave out")


def _pictures(video: VideoFile, run: Run) -> Iterator[av.VideoFrame]:
    import av

    decoder, pts = _lent_decoder(video), video.pts_P[run.start : run.stop].tolist()
    for index, data in read_packets(video, run.start, run.stop):
        packet = av.Packet(data)
        packet.pts = pts[index - run.start]
        yield from decoder.decode(packet)
    yield from decoder.decode(None)
    decoder.flush_buffers()
    _idle_decoders()[video.codec, video.extradata] = decoder  # one that failed, or was left half-way, is dropped


def _lent_decoder(video: VideoFile) -> av.VideoCodecContext:
    # Making a decoder costs as much as decoding several small frames, so a thread uses its own again. What it keeps
    # between two runs is nothing but memory: it is flushed.
    idle = _idle_decoders()
    found = idle.pop((video.codec, video.extradata), None)
    if found is not None:
        return found
    while len(idle) >= MAX_IDLE_DECODERS:
        idle.pop(next(iter(idle)))
    decoder = _decoder(DECODERS.get(video.codec, video.codec))
    decoder.extradata = video.extradata or None
    decoder.thread_count = 1  # the stream decodes many files at once, and frame threads only add latency
    return decoder


def _idle_decoders() -> dict[tuple[str, bytes], av.VideoCodecContext]:
    if not hasattr(_THREAD, "decoders"):
        _THREAD.decoders = {}
    found: dict[tuple[str, bytes], av.VideoCodecContext] = _THREAD.decoders
    return found


def _decoder(name: str) -> av.VideoCodecContext:
    import av

    decoder = av.CodecContext.create(name, "r")
    assert isinstance(decoder, av.VideoCodecContext)
    return decoder


def decode_image(data: bytes, where: str) -> np.ndarray:
    """uint8 [H, W, 3] RGB of one PNG or JPEG. Raises InputError naming `where`."""
    import av

    try:
        decoder = _decoder("png" if data[1:4] == b"PNG" else "mjpeg")
        decoder.options = {"err_detect": "explode"}  # without it, what a cut file lacks is drawn in grey
        for picture in [*decoder.decode(av.Packet(data)), *decoder.decode(None)]:
            return picture.to_ndarray(format="rgb24")
    except MemoryError:
        raise
    except av.error.FFmpegError as error:
        raise InputError(f"{where}: the image cannot be decoded ({error})") from error
    raise InputError(f"{where}: there is no image")
