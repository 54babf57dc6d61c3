"""Rollouts as small mp4 files that a browser plays: h264, yuv420p, index in front."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from vlarge.contracts import EpisodeKey, Observation

STEPS_PER_FRAME = 4
MIN_HEIGHT = 256  # small camera pictures are enlarged by a whole factor to at least this


def film_name(key: EpisodeKey) -> str:
    return f"{re.sub('[/:]', '__', key.task)}-{key.init_id:04d}-{key.seed}.mp4"


class Film:
    """Collects every fourth control step's pictures, the cameras side by side. Does not change the episode."""

    def __init__(self) -> None:
        self._frames: list[np.ndarray] = []

    def watch(self, step: int, observe: Callable[[], Observation]) -> None:
        if step % STEPS_PER_FRAME == 0:
            self._frames.append(np.hstack(list(observe().images.values())))

    def save(self, path: Path, control_hz: float) -> None:
        """Write atomically; plays in real time."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        _encode(temporary, [_enlarge(frame) for frame in self._frames], Fraction(control_hz) / STEPS_PER_FRAME)
        temporary.replace(path)


def _enlarge(frame: np.ndarray) -> np.ndarray:
    factor = -(-MIN_HEIGHT // frame.shape[0])
    frame = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    # yuv420p stores colour for squares of four pixels.
    return frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]


def _encode(path: Path, frames: list[np.ndarray], rate_hz: Fraction) -> None:
    import av

    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(
            "libx264", rate=rate_hz, options={"crf": "23", "preset": "veryfast", "threads": "1"}
        )
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
