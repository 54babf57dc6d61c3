"""Pictures at training resolution: on black or stretched, bilinear over the whole area that a pixel covers.

Everything is scaled by FFmpeg's swscale, so that processes which only serve data need no torch, and training and acting
see the same pictures.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import av
    from av.video.reformatter import VideoReformatter

# Between scaling and RGB a picture is 4:2:2: swscale is vectorised both ways, two to three times as fast as one step.
# A small picture would lose more by it and costs less: it goes through planes of green, blue and red.
LARGE, LARGE_FORMAT, SMALL_FORMAT = 192, "yuv422p", "gbrp"

# Where black is added: on both sides, or above and to the left, so that pictures lie in the last corner (SmolVLA), or
# nowhere: pictures are stretched (GR00T).
PADDINGS = ("centre", "corner", "none")

_of_thread = threading.local()


def resize_with_pad(image_HWC: np.ndarray, size: int, padding: str = PADDINGS[0]) -> np.ndarray:
    """uint8 [H, W, 3] to uint8 [size, size, 3]; the same array where it has that size already.

    padding: one of `PADDINGS`.
    """
    height, width = image_HWC.shape[:2]
    if (height, width) == (size, size):
        return image_HWC
    import av

    canvas_HWC = np.zeros((size, size, 3), np.uint8)
    rows, columns = placement(height, width, size, padding)
    scaler, _ = _reformatters()
    for channel in range(3):  # as three grey pictures: scaling them together would average their colours
        plane = av.VideoFrame.from_numpy_buffer(np.ascontiguousarray(image_HWC[..., channel]), format="gray")
        small = scaler.reformat(plane, width=_length(columns), height=_length(rows), interpolation="BILINEAR")
        canvas_HWC[rows, columns, channel] = _pixels(small, 1)[..., 0]
    return canvas_HWC


def resize_frame(frame: av.VideoFrame, size: int, out_HWC: np.ndarray, padding: str = PADDINGS[0]) -> None:
    """Write a decoded picture, scaled before it becomes RGB, into `out_HWC`, uint8 [size, size, 3]."""
    scaler, colours = _reformatters()
    if frame.format.is_rgb or (frame.height, frame.width) == (size, size):
        out_HWC[:] = resize_with_pad(rgb_pixels(frame), size, padding)
        return
    rows, columns = placement(frame.height, frame.width, size, padding)
    between = LARGE_FORMAT if size >= LARGE else SMALL_FORMAT
    small = scaler.reformat(
        frame, width=_length(columns), height=_length(rows), format=between, interpolation="BILINEAR"
    )
    out_HWC[: rows.start] = out_HWC[rows.stop :] = 0
    out_HWC[:, : columns.start] = out_HWC[:, columns.stop :] = 0
    out_HWC[rows, columns] = _pixels(colours.reformat(small, format="rgb24"), 3)


def rgb_pixels(frame: av.VideoFrame) -> np.ndarray:
    """uint8 [H, W, 3] of a decoded picture: memory of the decoder's, to be copied before the next one."""
    return _pixels(_reformatters()[1].reformat(frame, format="rgb24"), 3)


def placement(height: int, width: int, size: int, padding: str = PADDINGS[0]) -> tuple[slice, slice]:
    """Rows and columns of a [size, size] canvas that a picture takes."""
    if padding == "none":
        return slice(0, size), slice(0, size)
    ratio = max(height, width) / size
    new_height, new_width = max(1, int(height / ratio)), max(1, int(width / ratio))
    top, left = size - new_height, size - new_width
    if padding == "centre":
        top, left = top // 2, left // 2
    return slice(top, top + new_height), slice(left, left + new_width)


def _length(span: slice) -> int:
    return int(span.stop - span.start)


def _pixels(frame: av.VideoFrame, num_channels: int) -> np.ndarray:
    # uint8 [H, W, num_channels] of a packed frame, without a copy; its rows lie `line_size` bytes apart.
    plane, height, width = frame.planes[0], frame.height, frame.width
    whole: np.ndarray = np.ndarray(
        (height, width, num_channels), np.uint8, plane, 0, (plane.line_size, num_channels, 1)
    )
    return whole


def _reformatters() -> tuple[VideoReformatter, VideoReformatter]:
    # One for scaling and one for colours per thread: each keeps the tables of its last geometry.
    from av.video.reformatter import VideoReformatter

    if not hasattr(_of_thread, "pair"):
        _of_thread.pair = VideoReformatter(), VideoReformatter()
    pair: tuple[VideoReformatter, VideoReformatter] = _of_thread.pair
    return pair
