"""What a format finds out about a dataset when it is opened: cameras, episodes and where they lie, faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vlarge.data.check import Fault


@dataclass(frozen=True)
class Camera:
    """An image feature. Size and codec are the files'; where there are none (`present` False), what metadata says.

    codec: FFmpeg's name ("h264", "hevc", "av1"), or "image" for pictures that lie in the table itself.
    """

    key: str
    height: int
    width: int
    codec: str
    present: bool


@dataclass(frozen=True)
class VideoPart:
    """An episode's part of a video: frame i is the video's frame `first_frame + i`, in order of presentation."""

    file: str
    first_frame: int


@dataclass(frozen=True)
class Episode:
    """An episode that can be read whole. `index` is its number in the dataset; `tasks` are those its frames have.

    Its rows are [first_row, first_row + length) of `table_file`. Files are relative to the dataset.
    bad_rows: those (from 0, ascending) whose state or action is not finite; see `check.usable_spans`.
    """

    index: int
    length: int
    tasks: tuple[str, ...]
    table_file: str
    first_row: int
    videos: Mapping[str, VideoPart]
    bad_rows: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """The numbers of one episode: float32 [length, S] and [length, A], and the task of each frame."""

    state_TA: np.ndarray
    action_TA: np.ndarray
    tasks: list[str]


class Place(NamedTuple):
    """Where metadata says that an episode lies in a video, in seconds. No start: the file holds this episode alone."""

    file: str
    start_s: float | None = None
    stop_s: float | None = None


@dataclass(frozen=True)
class Listed:
    """An episode as metadata lists it, nothing checked. videos: by camera key. No `table_file`: it names none."""

    index: int
    length: int
    tasks: tuple[str, ...]
    table_file: str
    videos: Mapping[str, Place]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A dataset as found: only episodes without fault, in order of their numbers.

    task_texts: the text of each task_index. metadata_files: what decides, beside the data files, what is read.
    """

    format: str
    fps: float
    features: Mapping[str, Mapping[str, object]]
    cameras: Mapping[str, Camera]
    episodes: tuple[Episode, ...]
    faults: tuple[Fault, ...]
    state_dim: int
    action_dim: int
    task_texts: Mapping[int, str]
    metadata_files: tuple[str, ...]
