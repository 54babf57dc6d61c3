"""Frames by integer index out of an mp4: each group of pictures is decoded once, each frame checked against its pts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.mp4 import VideoFile

if TYPE_CHECKING:
    import av

DECODERS = {"av1": "libdav1d"}  # where FFmpeg's decoder has another name than the codec


@dataclass(frozen=True)
class Run:
    """Packets [start, stop) in decode order, to be decoded in one go for the frames `frames` (ascending)."""

    start: int
    stop: int
    frames: tuple[int, ...]


def plan_runs(video: VideoFile, frames: Sequence[int]) -> list[Run]:
    """The least decoding for these frames (ascending): from the key frame before each one; no packet in two runs.

    The key frame is the last one *shown* no later than the frame: after an open group of pictures, packets that follow
    a key frame may be shown before it and need the group before.
    """
    keys = np.flatnonzero(video.is_key_P)
    keys = keys[np.argsort(video.pts_P[keys], kind="stable")]
    last_needed_F = np.maximum.accumulate(video.frame_packets_F)  # a frame may only refer to packets before its own
    runs: list[Run] = []
    for frame in frames:
        before = int(np.searchsorted(video.pts_P[keys], video.pts_F[frame], side="right")) - 1
        start, stop = int(keys[before]) if before >= 0 else 0, int(last_needed_F[frame]) + 1
        if runs and start <= runs[-1].stop:
            last = runs[-1]
            runs[-1] = Run(last.start, max(stop, last.stop), (*last.frames, frame))
        else:
            runs.append(Run(start, stop, (frame,)))
    return runs


def decode_frames(video: VideoFile, frames: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """(frame, uint8 [H, W, 3] RGB) for each of `frames` (ascending, without repeats), in that order.

    Raises InputError naming file and frame when one cannot be decoded or does not carry its pts.
    """
    if frames and not 0 <= frames[0] <= frames[-1] < video.num_frames:
        raise InputError(f"{video.path}: frame {frames[-1]} was asked for, the video has {video.num_frames}")
    for run in plan_runs(video, frames):
        yield from _decode_run(video, run)


def num_packets(video: VideoFile, frames: Sequence[int]) -> int:
    """How many packets `decode_frames` decodes for these frames."""
    return sum(run.stop - run.start for run in plan_runs(video, frames))


def _decode_run(video: VideoFile, run: Run) -> Iterator[tuple[int, np.ndarray]]:
    import av
    from av.video.reformatter import VideoReformatter

    wanted = {int(video.pts_F[frame]): frame for frame in run.frames}
    order = iter(run.frames)
    expected = next(order)
    reformatter = VideoReformatter()
    try:
        for picture in _pictures(video, run):
            frame = wanted.get(-1 if picture.pts is None else picture.pts)
            if frame is None:
                continue
            if frame != expected or picture.is_corrupt:
                break
            yield frame, reformatter.reformat(picture, format="rgb24").to_ndarray()
            expected = next(order, -1)
            if expected < 0:
                return
    except av.error.FFmpegError as error:
        raise InputError(f"{video.path}: frame {expected} cannot be decoded ({error}); mend or leave out") from error
    raise InputError(f"{video.path}: frame {expected} is damaged or does not carry its time stamp; mend or leave out")


def _pictures(video: VideoFile, run: Run) -> Iterator[av.VideoFrame]:
    import av

    # One thread per decoder: the stream decodes many files at once, and frame threads only add latency.
    decoder = av.VideoCodecContext.create(DECODERS.get(video.codec, video.codec), "r")
    decoder.extradata = video.extradata or None
    decoder.thread_count = 1
    for data, pts in _packets(video, run):
        packet = av.Packet(data)
        packet.pts = pts
        yield from decoder.decode(packet)
    yield from decoder.decode(None)


def _packets(video: VideoFile, run: Run) -> Iterator[tuple[bytes, int]]:
    with video.path.open("rb") as file:
        for index in range(run.start, run.stop):
            file.seek(int(video.offset_P[index]))
            size = int(video.size_P[index])
            data = file.read(size)
            if len(data) != size:
                raise InputError(f"{video.path}: the file ends inside packet {index}; it is truncated")
            yield data, int(video.pts_P[index])


def decode_image(data: bytes, where: str) -> np.ndarray:
    """uint8 [H, W, 3] RGB of one PNG or JPEG. Raises InputError naming `where`."""
    import av

    try:
        decoder = av.VideoCodecContext.create("png" if data[1:4] == b"PNG" else "mjpeg", "r")
        for picture in [*decoder.decode(av.Packet(data)), *decoder.decode(None)]:
            return picture.to_ndarray(format="rgb24")
    except av.error.FFmpegError as error:
        raise InputError(f"{where}: the image cannot be decoded ({error})") from error
    raise InputError(f"{where}: there is no image")
