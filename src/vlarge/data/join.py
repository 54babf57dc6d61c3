"""Clips of video joined to one mp4 by copying their packets: not a pixel changes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.encode import Encoding
from vlarge.data.mp4 import CODECS, VideoFile, read_local_video
from vlarge.data.stats import PixelHistogram

COPYABLE = {codec for codec, _ in CODECS.values()}


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames [first_frame, first_frame + num_frames) of a video file, with the counts of their pixels' levels.

    encoding: how they were encoded; None where the video came from elsewhere.
    """

    path: Path
    first_frame: int
    num_frames: int
    pixels: PixelHistogram
    encoding: Encoding | None = None

    @cached_property
    def video(self) -> VideoFile:
        """The file's table. Raises BrokenFile for a file that cannot be read."""
        return read_local_video(self.path)

    @cached_property
    def packets(self) -> slice:
        """Its packets in the file. Raises InputError when they cannot be copied by themselves."""
        packets = clip_packets(self.video, self.first_frame, self.num_frames)
        if packets is None:
            raise InputError(f"{self.path}: its {self.num_frames} frames from {self.first_frame} on cannot be copied")
        return packets

    @cached_property
    def places(self) -> np.ndarray:
        """int64: for each packet, in decode order, the place at which its frame is shown."""
        return np.argsort(np.argsort(self.video.pts_P[self.packets], kind="stable"), kind="stable")

    @property
    def delay(self) -> int:
        """How many frames decoding has to run ahead of showing."""
        return int((np.arange(self.num_frames) - self.places).max())


def clip_packets(video: VideoFile, first_frame: int, num_frames: int) -> slice | None:
    """The packets of these frames if they can be cut out and joined to others, else None.

    They can when they follow one another, start with a key frame, and no picture refers beyond a key frame: then they
    decode the same wherever they are put, and every key frame is a place to start.
    """
    packets = np.sort(video.frame_packets_F[first_frame : first_frame + num_frames])
    start, stop = int(packets[0]), int(packets[-1]) + 1
    pts = video.pts_P[start:stop]
    earliest_after = np.minimum.accumulate(pts[::-1])[::-1]
    keys = np.flatnonzero(video.is_key_P[start:stop])
    closed = len(keys) > 0 and keys[0] == 0 and bool((earliest_after[keys] == pts[keys]).all())
    whole = stop - start == num_frames and bool(video.complete_F[first_frame : first_frame + num_frames].all())
    return slice(start, stop) if video.codec in COPYABLE and closed and whole else None


class Mp4Joiner:
    """One mp4 file, clip after clip. Frame i has the time i / rate exactly; the index lies at the front of the file.

    num_frames, num_bytes: what is in it so far. stream_info: how it is encoded, in LeRobot's names.
    """

    def __init__(self, path: Path, first: Clip, rate: Fraction) -> None:
        import av

        self.num_frames = 0
        self.num_bytes = 0
        self._tick = 1 / rate
        self._model, self._delay = first.video, first.delay
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"})
        with av.open(str(first.path)) as source:
            template = source.streams.video[0]
            self.stream_info = _describe(self._model.codec, template.codec_context.pix_fmt, first.encoding)
            self._stream: Any = self._container.add_stream_from_template(template, opaque=True)
        self._stream.time_base = self._tick

    def fits(self, clip: Clip) -> bool:
        """Whether the clip can follow: same codec, size and decoder set-up, and no picture comes later than here."""
        ours, theirs = ((v.codec, v.extradata, v.height, v.width) for v in (self._model, clip.video))
        return ours == theirs and clip.delay <= self._delay

    def add(self, clip: Clip) -> None:
        """Append a clip that `fits`; its first frame is a key frame. Raises InputError for a damaged file."""
        import av

        video, packets = clip.video, clip.packets
        with clip.path.open("rb") as file:
            for i, index in enumerate(range(packets.start, packets.stop)):
                file.seek(int(video.offset_P[index]))
                packet = av.Packet(file.read(int(video.size_P[index])))
                packet.time_base = self._tick
                packet.pts = self.num_frames + int(clip.places[i])
                packet.dts = self.num_frames + i - self._delay
                packet.duration = 1
                packet.is_keyframe = bool(video.is_key_P[index])
                packet.stream = self._stream
                self.num_bytes += packet.size
                self._container.mux_one(packet)
        self.num_frames += clip.num_frames

    def close(self) -> None:
        """Finish the file."""
        self._container.close()


def _describe(codec: str, pix_fmt: str | None, encoding: Encoding | None) -> dict[str, Any]:
    info: dict[str, Any] = {"video.codec": codec, "video.pix_fmt": pix_fmt}
    if encoding is not None:
        info |= {"video.g": encoding.gop, "video.crf": encoding.quality, "video.preset": encoding.preset}
    return info
