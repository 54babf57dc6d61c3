"""A picture as a decoder or a still image gives it, to RGB pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vlarge.data.transforms.resize import resize_frame, resize_with_pad, rgb_pixels

if TYPE_CHECKING:
    import av


def to_rgb(picture: av.VideoFrame | np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3]."""
    return picture if isinstance(picture, np.ndarray) else rgb_pixels(picture).copy()


def write_rgb(picture: av.VideoFrame | np.ndarray, out_HWC: np.ndarray) -> None:
    """Fill `out_HWC`, uint8 [H, W, 3]: a square one where the picture is of another size, which is then resized."""
    height, width = out_HWC.shape[:2]
    if isinstance(picture, np.ndarray):
        out_HWC[...] = picture if picture.shape == out_HWC.shape else resize_with_pad(picture, height)
    elif (picture.height, picture.width) == (height, width):
        out_HWC[...] = rgb_pixels(picture)
    else:
        resize_frame(picture, height, out_HWC)
