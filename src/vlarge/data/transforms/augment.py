"""How training changes each picture, drawn here as a few numbers: a pure function of seed, epoch, sample and camera.

Only the numbers are made while data is served, some microseconds for each picture; the model changes the pixels of the
whole batch on its own device (`models.augment`). The ranges are openpi's for π0 and π0.5: every camera gets other
colours, and a camera that is not on the wrist a crop of 95% of each side and a turn of up to 5 degrees.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable

import numpy as np

from vlarge.contracts import SampleId

CROP = 0.95  # of each side
TURN_RAD = math.radians(5)
BRIGHTNESS, CONTRAST, SATURATION = 0.3, 0.4, 0.5  # factors lie within 1 -+ these


def draw(seed: int, epoch: int, sample_id: SampleId, cameras: Iterable[str]) -> np.ndarray:
    """float32 [num cameras, 7] that `models.augment.apply` takes; without change a row is 1, 0, 0, 0, 1, 1, 1."""
    rows = [_draw(seed, epoch, sample_id, camera) for camera in cameras]
    return np.array(rows, np.float32).reshape(-1, 7)


def _draw(seed: int, epoch: int, sample_id: SampleId, camera: str) -> tuple[float, ...]:
    x, y, turn, brightness, contrast, saturation = _uniform(f"{seed} {epoch} {' '.join(map(str, sample_id))} {camera}")
    colours = 1 + BRIGHTNESS * brightness, 1 + CONTRAST * contrast, 1 + SATURATION * saturation
    if "wrist" in camera:  # it shows where the gripper is: its geometry stays
        return 1.0, 0.0, 0.0, 0.0, *colours
    angle = TURN_RAD * turn
    return CROP * math.cos(angle), CROP * math.sin(angle), (1 - CROP) * x, (1 - CROP) * y, *colours


def _uniform(key: str) -> list[float]:
    # Six numbers in [-1, 1), by BLAKE2b: no generator's state or version enters.
    digest = hashlib.blake2b(key.encode(), digest_size=48).digest()
    return [(number >> 11) * 2.0**-52 - 1 for number in struct.unpack("<6Q", digest)]
