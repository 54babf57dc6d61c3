"""What a format finds out about a dataset when it is opened: cameras, episodes and where they lie, faults."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from vlarge.data.check import Fault
from vlarge.data.mp4 import VideoFile


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

    def file_of(self, camera_key: str) -> str:
        """Where this camera's pictures lie: a video, or the table."""
        return self.videos[camera_key].file if camera_key in self.videos else self.table_file


class Rows[T](Sequence[T]):
    """A sequence whose items are made one at a time, from columns. Equal to any sequence of equal items."""

    @abstractmethod
    def _make(self, row: int) -> T: ...

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[T, ...]: ...
    def __getitem__(self, row: int | slice) -> T | tuple[T, ...]:
        if isinstance(row, slice):
            return tuple(self._make(i) for i in range(*row.indices(len(self))))
        return self._make(range(len(self))[row])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class EpisodeRows(Rows[Episode]):
    """Episodes as columns (suffix E). Files and tasks are numbers into `files` and `texts`.

    tasks: offsets int64 [E + 1] into numbers of tasks; bad_rows: the same into rows. videos: camera key -> (file, -1
    for none, and first frame).
    """

    index_E: np.ndarray
    length_E: np.ndarray
    table_file_E: np.ndarray
    first_row_E: np.ndarray
    tasks: tuple[np.ndarray, np.ndarray]
    bad_rows: tuple[np.ndarray, np.ndarray]
    videos: Mapping[str, tuple[np.ndarray, np.ndarray]]
    files: Sequence[str]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.index_E)

    def _make(self, row: int) -> Episode:
        starts, numbers = self.tasks
        bad_starts, bad = self.bad_rows
        return Episode(
            index=int(self.index_E[row]),
            length=int(self.length_E[row]),
            tasks=tuple(self.texts[n] for n in numbers[starts[row] : starts[row + 1]].tolist()),
            table_file=self.files[int(self.table_file_E[row])],
            first_row=int(self.first_row_E[row]),
            videos={
                key: VideoPart(self.files[int(file_E[row])], int(first_frame_E[row]))
                for key, (file_E, first_frame_E) in self.videos.items()
                if file_E[row] >= 0
            },
            bad_rows=tuple(bad[bad_starts[row] : bad_starts[row + 1]].tolist()),
        )


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """The numbers of one episode: float32 [length, S] and [length, A], and the task of each frame."""

    state_TA: np.ndarray
    action_TA: np.ndarray
    tasks: list[str]

    @property
    def num_bytes(self) -> int:
        return self.state_TA.nbytes + self.action_TA.nbytes + 8 * len(self.tasks)

    def copy(self) -> EpisodeTable:
        """The same numbers, apart from the table of the whole file that they may be a part of."""
        return EpisodeTable(self.state_TA.copy(), self.action_TA.copy(), self.tasks)


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
    video_files: the packets of every video that episodes lie in, by file. revision: see `Dataset.revision`.
    """

    format: str
    fps: float
    features: Mapping[str, Mapping[str, object]]
    cameras: Mapping[str, Camera]
    episodes: Sequence[Episode]
    faults: Sequence[Fault]
    state_dim: int
    action_dim: int
    task_texts: Mapping[int, str]
    metadata_files: tuple[str, ...]
    video_files: Mapping[str, VideoFile] = field(default_factory=dict)
    revision: str = ""

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 [episodes]: their frames; not copied where they are mapped."""
        if isinstance(self.episodes, EpisodeRows):
            return self.episodes.length_E
        return np.fromiter((e.length for e in self.episodes), np.int64)

    @cached_property
    def with_bad_rows(self) -> list[int]:
        """Positions of the episodes that have bad rows."""
        if isinstance(self.episodes, EpisodeRows):
            return np.flatnonzero(np.diff(self.episodes.bad_rows[0])).tolist()
        return [i for i, e in enumerate(self.episodes) if e.bad_rows]

    @cached_property
    def used_tasks(self) -> list[str]:
        """The tasks that frames have, in the order in which episodes bring them."""
        if isinstance(self.episodes, EpisodeRows):
            return [self.episodes.texts[n] for n in np.unique(self.episodes.tasks[1]).tolist()]
        return list(dict.fromkeys(task for e in self.episodes for task in e.tasks))
