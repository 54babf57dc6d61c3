"""A decoded picture, as a decoder or a still image gives it, to RGB pixels."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from vlarge.data.transforms import resize_with_pad

if TYPE_CHECKING:
    import av
    from av.video.reformatter import VideoReformatter

_THREAD = threading.local()


def to_rgb(picture: av.VideoFrame | np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3]."""
    if isinstance(picture, np.ndarray):
        return picture
    return _pixels(_reformatter().reformat(picture, format="rgb24")).copy()


def write_rgb(picture: av.VideoFrame | np.ndarray, out_HWC: np.ndarray) -> None:
    """Fill `out_HWC`, uint8 [H, W, 3]: resized with padding where the picture is of another size."""
    height, width = out_HWC.shape[:2]
    if isinstance(picture, np.ndarray):
        out_HWC[...] = resize_with_pad(picture, height) if picture.shape != out_HWC.shape else picture
    elif (picture.height, picture.width) == (height, width):
        out_HWC[...] = _pixels(_reformatter().reformat(picture, format="rgb24"))
    else:
        out_HWC[...] = resize_with_pad(to_rgb(picture), height)


def _pixels(frame: av.VideoFrame) -> np.ndarray:
    # The rgb24 plane without the padding of its lines, not copied.
    plane = frame.planes[0]
    lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: frame.height]
    return lines[:, : 3 * frame.width].reshape(frame.height, frame.width, 3)


def _reformatter() -> VideoReformatter:
    from av.video.reformatter import VideoReformatter

    # Its scaler is set up once and used again; it must not be shared by threads.
    if not hasattr(_THREAD, "reformatter"):
        _THREAD.reformatter = VideoReformatter()
    found: VideoReformatter = _THREAD.reformatter
    return found
