"""A picture as a decoder or a still image gives it, to RGB pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.transforms.resize import PADDINGS, resize_frame, resize_with_pad, rgb_pixels

if TYPE_CHECKING:
    import av


def to_rgb(picture: av.VideoFrame | np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3]."""
    return picture if isinstance(picture, np.ndarray) else rgb_pixels(picture).copy()


def write_rgb(picture: av.VideoFrame | np.ndarray, out_HWC: np.ndarray, padding: str = PADDINGS[0]) -> None:
    """Fill `out_HWC`, uint8 [H, W, 3]. A picture of another size is resized with padding where H = W; see `PADDINGS`.

    Raises InputError where it is not: padding is defined for squares.
    """
    height, width = out_HWC.shape[:2]
    own = picture.shape[:2] if isinstance(picture, np.ndarray) else (picture.height, picture.width)
    if own != (height, width) and height != width:
        raise InputError(
            f"a picture of {own[0]}x{own[1]} where {height}x{width} is wanted: give a size, so that all become squares"
        )
    if isinstance(picture, np.ndarray):
        out_HWC[...] = resize_with_pad(picture, height, padding) if own != (height, width) else picture
    elif own == (height, width):
        out_HWC[...] = rgb_pixels(picture)
    else:
        resize_frame(picture, height, out_HWC, padding)
