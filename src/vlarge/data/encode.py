"""Frames to video: one short mp4 per episode and camera, which decodes by itself and can be joined to others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from vlarge.contracts import InputError

if TYPE_CHECKING:
    from av import Packet
    from av.container import OutputContainer

MAX_FPS_DENOMINATOR = 100_000


@dataclass(frozen=True)
class _Encoder:
    library: str
    pix_fmt: str
    crf: int
    preset: str
    options: Mapping[str, str]  # "{gop}" is filled in


# Tuned for fidelity to the pixels, not to the eye; no frame is shown before one that was encoded earlier; one thread,
# because the output of some encoders depends on the number of threads, and episodes are encoded side by side.
# On renders of 96 to 224 pixels crf 16 gives 42 to 44 dB at 2 to 5 kB a frame. Colour keeps its full resolution where
# the encoder can: with yuv420p no quality setting brings such small frames much beyond 40 dB.
ENCODERS: Mapping[str, _Encoder] = MappingProxyType(
    {
        "h264": _Encoder(
            "libx264", "yuv444p", 16, "veryfast", {"tune": "psnr,zerolatency", "sc_threshold": "0", "threads": "1"}
        ),
        "hevc": _Encoder(
            "libx265",
            "yuv444p",
            16,
            "ultrafast",
            {
                "tune": "psnr",
                "x265-params": "keyint={gop}:min-keyint={gop}:bframes=0:scenecut=0:open-gop=0:rc-lookahead=0"
                ":pools=none:frame-threads=1:log-level=error",
            },
        ),
        # Preset 12 drops changes of whole blocks between key frames; 8 keeps them.
        "av1": _Encoder("libsvtav1", "yuv420p", 18, "8", {"svtav1-params": "tune=1:pred-struct=1:lp=1"}),
    }
)


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How pictures become video.

    codec: "h264", "hevc" (both with colour at full resolution) or "av1" (colour at half resolution: it cannot do more
    at a bearable speed). gop: frames from one key frame to the next; crf: 0 is best; None is what is right for the
    codec, 40 dB and more in RGB (av1: about 40).
    """

    codec: str = "h264"
    gop: int = 4
    crf: int | None = None

    def __post_init__(self) -> None:
        """Raise InputError for what no encoder takes."""
        if self.codec not in ENCODERS:
            raise InputError(f"codec {self.codec!r} is unknown; use {', '.join(ENCODERS)}")
        if self.gop < 1:
            raise InputError(f"gop is {self.gop}; a key frame can come every frame (1) or more rarely")
        limit = 63 if self.codec == "av1" else 51
        if self.crf is not None and not 0 <= self.crf <= limit:
            raise InputError(f"crf is {self.crf}; {self.codec} takes 0 (best) to {limit}")

    @property
    def pix_fmt(self) -> str:
        return ENCODERS[self.codec].pix_fmt

    @property
    def quality(self) -> int:
        """The crf that is used."""
        return ENCODERS[self.codec].crf if self.crf is None else self.crf

    @property
    def is_coarse(self) -> bool:
        """Whether less quality is asked for than is right for the codec."""
        return self.quality > ENCODERS[self.codec].crf

    @property
    def preset(self) -> str:
        return ENCODERS[self.codec].preset

    def check_size(self, where: str, height: int, width: int) -> None:
        """Raise InputError for a picture that the codec cannot hold."""
        least = 64 if self.codec == "av1" else 16
        if min(height, width) < least and self.codec != "h264":
            raise InputError(f"{where} is {height}x{width}; {self.codec} needs {least} pixels: use h264, or a size")
        if self.codec == "av1" and (height % 2 or width % 2):
            raise InputError(f"{where} is {height}x{width}; av1 needs even numbers of pixels: use h264, or a size")

    def options(self) -> dict[str, str]:
        """FFmpeg's options."""
        encoder = ENCODERS[self.codec]
        filled = {name: value.replace("{gop}", str(self.gop)) for name, value in encoder.options.items()}
        return {"preset": encoder.preset, "crf": str(self.quality), "g": str(self.gop), **filled}


def exact_rate(fps: float) -> Fraction:
    """The rate as a fraction that video files can hold; frame i has the time i / rate, within 1e-7 s of i / fps."""
    return Fraction(fps).limit_denominator(MAX_FPS_DENOMINATOR)


def encode_clip(path: Path, frames: Iterable[np.ndarray], encoding: Encoding, rate: Fraction) -> int:
    """Write frames, uint8 [H, W, 3] all of one size, to an mp4 and return their number.

    Frame i has the time i / rate exactly; the first one is a key frame and nothing refers beyond the clip. Frames are
    taken one at a time. Raises what `frames` raises, OSError for a full disk, ValueError for no frame; the file is
    removed then.
    """
    import av

    num_frames = 0
    # SVT-AV1 greets on stderr and knows no other switch.
    os.environ.setdefault("SVT_LOG", "1")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with av.open(str(path), "w", format="mp4") as container:
            for packets in _encode(container, frames, encoding, rate):
                container.mux(packets)
                num_frames += 1
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return num_frames


def _encode(
    container: OutputContainer, frames: Iterable[np.ndarray], encoding: Encoding, rate: Fraction
) -> Iterator[list[Packet]]:
    """The packets that each frame yields, and what the encoder still holds at the end, with the last one's."""
    from av import VideoFrame
    from av.video.reformatter import VideoReformatter

    reformatter, stream = VideoReformatter(), None
    packets: list[Packet] = []
    for number, image in enumerate(frames):
        if stream is None:
            stream = _stream(container, image, encoding, rate)
        else:
            yield packets
        frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame = reformatter.reformat(frame, format=encoding.pix_fmt)
        frame.pts, frame.time_base = number, 1 / rate
        packets = stream.encode(frame)
    if stream is None:
        raise ValueError("no frame to encode")
    yield packets + stream.encode(None)


def _stream(container: OutputContainer, image: np.ndarray, encoding: Encoding, rate: Fraction) -> Any:
    stream: Any = container.add_stream(ENCODERS[encoding.codec].library, rate=rate, options=encoding.options())
    stream.height, stream.width = image.shape[:2]
    stream.pix_fmt = encoding.pix_fmt
    stream.codec_context.time_base = 1 / rate
    stream.codec_context.thread_count = 1
    return stream
