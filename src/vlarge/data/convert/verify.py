"""Is the copy what it should be? Every frame is decoded and compared, every number and task must be equal."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.convert.plan import CameraPlan
from vlarge.data.index import Dataset
from vlarge.data.manifest import Episode

BLOCK = 16  # pixels: an encoder that loses something loses whole blocks
SUBSAMPLE = 4
NEIGHBOUR_RATIO = 3.0
EXACT_DB = 99.0  # stands for no difference at all

# Least PSNR in RGB of a frame and of a block of 16 x 16. A frame that was mistaken for another, a grey one or a block
# that an encoder left out are far below; what coding and colour at half resolution cost is well above.
LIMITS_DB = {"yuv444p": (34.0, 20.0), "yuv420p": (24.0, 15.0)}
COARSE_LIMITS_DB = (20.0, 8.0)  # whoever asks for less quality decides what is good enough


class Mismatch(InputError):
    """The copy is not what it should be. Nothing is published."""


@dataclass(frozen=True)
class Likeness:
    """How near the frames of one episode and camera are to the source's. PSNR in dB, 99 for equal frames."""

    episode: int
    camera: str
    mean_psnr_db: float
    min_psnr_db: float


class Verified:
    """What has been found equal so far, kept in a file, so that an interrupted check goes on. Threads may share one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.found: dict[tuple[int, str], Likeness] = {}
        for line in path.read_text().splitlines() if path.is_file() else ():
            try:
                likeness = Likeness(**json.loads(line))
            except (ValueError, TypeError):
                continue  # the last line, cut by a kill
            self.found[likeness.episode, likeness.camera] = likeness

    def add(self, likeness: Likeness) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(asdict(likeness)) + "\n")
            self.found[likeness.episode, likeness.camera] = likeness


def compare_frames(
    episode: int, camera: CameraPlan, source: Iterable[np.ndarray], copy: Iterable[np.ndarray]
) -> Likeness:
    """Compare frame by frame. Raises Mismatch, naming episode, camera and frame, for one that is not the source's."""
    psnrs_db: list[float] = []
    before: tuple[np.ndarray, np.ndarray] | None = None
    for number, pair in enumerate(zip(source, copy, strict=True)):
        where = f"episode {episode}, {camera.key}, frame {number}"
        psnrs_db.append(_check_frame(where, camera, *pair))
        if before is not None and (_taken_for(*pair, before[0]) or _taken_for(*before, pair[0])):
            raise Mismatch(f"{where}: it or the frame before it shows its neighbour")
        before = pair
    return Likeness(episode, camera.key, float(np.mean(psnrs_db)), min(psnrs_db))


def _check_frame(where: str, camera: CameraPlan, image: np.ndarray, copied: np.ndarray) -> float:
    """PSNR of a frame in dB."""
    if image.shape != copied.shape:
        raise Mismatch(f"{where}: it is {list(copied.shape)} instead of {list(image.shape)}")
    errors = block_errors(image, copied)
    frame_db, block_db = psnr_db(float(errors.mean())), psnr_db(float(errors.max()))
    least_frame_db, least_block_db = _limits_db(camera)
    if frame_db < least_frame_db or block_db < least_block_db:
        raise Mismatch(
            f"{where}: the copy differs from the source, {frame_db:.1f} dB and {block_db:.1f} dB in its worst block; "
            f"expected are {least_frame_db:g} and {least_block_db:g}"
        )
    return frame_db


def _limits_db(camera: CameraPlan) -> tuple[float, float]:
    if camera.encoding is None:
        return EXACT_DB, EXACT_DB
    return COARSE_LIMITS_DB if camera.encoding.is_coarse else LIMITS_DB[camera.encoding.pix_fmt]


def block_errors(a_HWC: np.ndarray, b_HWC: np.ndarray) -> np.ndarray:
    """Mean square error of each block of 16 x 16 pixels, over all channels; those at the far edges may be smaller."""
    height, width, channels = a_HWC.shape
    distance = np.where(a_HWC > b_HWC, a_HWC - b_HWC, b_HWC - a_HWC).astype(np.uint16)
    square = (distance * distance).reshape(height, width * channels)  # at most 255², which uint16 holds
    rows, columns = np.arange(0, height, BLOCK), np.arange(0, width, BLOCK)
    sums = np.add.reduceat(np.add.reduceat(square, rows, 0, np.uint32), columns * channels, 1, np.uint64)
    sizes = np.outer(np.minimum(height - rows, BLOCK), np.minimum(width - columns, BLOCK)) * channels
    return np.asarray(sums / sizes)


def psnr_db(mean_square_error: float) -> float:
    """Of pixels from 0 to 255; at most 99."""
    return min(EXACT_DB, 10 * math.log10(255**2 / mean_square_error)) if mean_square_error else EXACT_DB


def _taken_for(image: np.ndarray, copied: np.ndarray, neighbour: np.ndarray) -> bool:
    """Whether the copy of `image` is clearly nearer to its neighbour. Every fourth pixel each way tells."""
    seen = copied[::SUBSAMPLE, ::SUBSAMPLE].astype(np.float32)
    own, other = (float(np.square(a[::SUBSAMPLE, ::SUBSAMPLE] - seen).mean()) for a in (image, neighbour))
    return own > NEIGHBOUR_RATIO * other + 1


def check_episodes(source: Dataset, copy: Dataset) -> None:
    """Raise Mismatch unless the copy has the source's usable episodes, one by one, and nothing odd of its own."""
    odd = {fault.kind for fault in source.faults if fault.action == "report"}
    new = [fault for fault in copy.faults if fault.action != "report" or fault.kind not in odd]
    if new:
        raise Mismatch(f"the copy has a fault: {new[0]}")
    lengths = [e.length for e in source.episodes], [e.length for e in copy.episodes]
    if lengths[0] != lengths[1]:
        raise Mismatch(f"the copy has {len(lengths[1])} episodes, the source {len(lengths[0])}, or other lengths")


def check_numbers(source: Dataset, copy: Dataset, episode: Episode, copied: Episode) -> None:
    """Raise Mismatch unless state, action and task of every frame are equal to the last bit."""
    ours, theirs = source.read_table(episode), copy.read_table(copied)
    for name, a, b in (("state", ours.state_TA, theirs.state_TA), ("action", ours.action_TA, theirs.action_TA)):
        if a.shape != b.shape or not np.array_equal(a, b):
            raise Mismatch(f"episode {episode.index}: {name} differs from the source's")
    if ours.tasks != theirs.tasks:
        frame = next(i for i, (a, b) in enumerate(zip(ours.tasks, theirs.tasks, strict=True)) if a != b)
        raise Mismatch(f"episode {episode.index}, frame {frame}: its task is {theirs.tasks[frame]!r} in the copy")
