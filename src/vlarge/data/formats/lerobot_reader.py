"""Reads the numbers and pictures of episodes that have been indexed, by row and frame number."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.cache import ByteCache
from vlarge.data.check import BrokenFile, Unreachable
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_rows import row_tasks
from vlarge.data.formats.lerobot_tables import Cells, TableFile, read_cells, read_table_file
from vlarge.data.formats.parquet_file import Footer, read_footer
from vlarge.data.manifest import Episode, EpisodeTable, Manifest
from vlarge.data.mp4 import VideoFile
from vlarge.data.video import decode_image, decode_runs, num_packets, plan_runs, starts_afresh

if TYPE_CHECKING:
    import av

FOOTER_CACHE_BYTES = 256 << 20
TABLE_CACHE_BYTES = 256 << 20
VIDEO_TABLE_CACHE_BYTES = 256 << 20
CELL_CACHE_BYTES = 256 << 20


class LeRobotReader:
    """Threads may share one. Keeps rows of recently read files, within a budget of bytes; no open file, no frame.

    num_decoded: frames decoded so far, those that only lie on the way to others included.
    """

    def __init__(self, store: Store, manifest: Manifest, config: Source) -> None:
        self._store = store
        self._manifest = manifest
        self._keys = config.state_key, config.action_key
        self._footers: ByteCache[str, Footer] = ByteCache(self._load_footer, FOOTER_CACHE_BYTES)
        self._tables: ByteCache[tuple[str, range | None], TableFile] = ByteCache(self._load_table, TABLE_CACHE_BYTES)
        self._videos: ByteCache[str, VideoFile] = ByteCache(manifest.video_files.__getitem__, VIDEO_TABLE_CACHE_BYTES)
        self._cells: ByteCache[tuple[str, str, int], Cells] = ByteCache(self._load_cells, CELL_CACHE_BYTES)
        self._lock = threading.Lock()
        self.num_decoded = 0

    def read_table(self, episode: Episode) -> EpisodeTable:
        """State, action and task of every frame. Raises InputError naming the file."""
        try:
            groups, begin = self._groups_of(episode)
            table = self._tables.get((episode.table_file, groups))
        except BrokenFile as error:
            raise BrokenFile(error.kind, f"{episode.table_file} has changed: {error.detail}") from error
        rows = slice(episode.first_row - begin, episode.first_row - begin + episode.length)
        if table.rows_of(episode.index) != (rows.start, rows.stop):
            raise BrokenFile("truncated_parquet", f"{episode.table_file}: its rows have changed since it was indexed")
        tasks = row_tasks(table, rows, self._manifest.task_texts, episode.tasks)
        return EpisodeTable(table.state_RA[rows], table.action_RA[rows], tasks)

    def starts_afresh(self, episode: Episode, camera_keys: Sequence[str], frames: np.ndarray) -> np.ndarray:
        """bool [n]: see `video.starts_afresh`, for all these cameras at once."""
        afresh = np.ones(len(frames), bool)
        for part in (episode.videos[key] for key in camera_keys if key in episode.videos):
            afresh &= starts_afresh(self._videos.get(part.file), frames + part.first_frame)
        return afresh

    def num_packets(self, episode: Episode, camera_key: str, frame_indices: Sequence[int]) -> int:
        """Frames to decode for these (ascending)."""
        part = episode.videos.get(camera_key)
        if part is None:
            return len(frame_indices)
        return num_packets(self._videos.get(part.file), [part.first_frame + i for i in frame_indices])

    def gop_frames(self, episode: Episode, camera_key: str) -> int:
        """The median distance of two key frames in the episode's video."""
        part = episode.videos.get(camera_key)
        if part is None:
            return 1
        video = self._videos.get(part.file)
        distances = np.diff(np.flatnonzero(video.is_key_P), append=len(video.is_key_P))
        return max(1, int(np.median(distances))) if len(distances) else video.num_frames

    def pictures(
        self, episode: Episode, camera_key: str, frame_indices: Sequence[int]
    ) -> Iterator[av.VideoFrame | np.ndarray]:
        """Each frame (ascending, no repeats) as it is decoded. Raises InputError naming episode, file and frame."""
        part = episode.videos.get(camera_key)
        try:
            if part is None:
                self._count(len(frame_indices))
                yield from self._images(episode, camera_key, frame_indices)
                return
            video = self._videos.get(part.file)
            wanted = [part.first_frame + i for i in frame_indices]
            runs = plan_runs(video, wanted)
            self._count(sum(run.stop - run.start for run in runs))
            yield from decode_runs(video, runs)
        except Unreachable:
            raise  # not the episode's fault
        except InputError as error:
            raise InputError(
                f"episode {episode.index}, camera {camera_key}, frames {frame_indices[0]} to {frame_indices[-1]} "
                f"({episode.file_of(camera_key)}): {error}"
            ) from error

    def _images(self, episode: Episode, key: str, frame_indices: Sequence[int]) -> Iterator[np.ndarray]:
        file = episode.table_file
        rows = episode.first_row + np.asarray(frame_indices, np.int64)
        groups = np.searchsorted(self._footers.get(file).group_stops, rows, side="right")
        for row, group, is_new in zip(rows.tolist(), groups.tolist(), np.diff(groups, prepend=-1) != 0, strict=True):
            if is_new:
                cells = self._cells.get((file, key, group))
            yield decode_image(cells.data[row - cells.first_row], f"{self._store.path(file)}: column {key!r} row {row}")

    def _groups_of(self, episode: Episode) -> tuple[range | None, int]:
        # The row groups of its file that hold the episode, None for all, and their first row.
        if self._manifest.format != "lerobot-v3.0":
            return None, 0  # each episode has a file
        footer = self._footers.get(episode.table_file)
        if "episode_index" not in footer.metadata.schema.names:
            return None, 0  # only a file of one episode may lack it
        groups = footer.groups_of(episode.first_row, episode.first_row + episode.length)
        return groups, footer.first_row(groups.start)

    def _load_footer(self, file: str) -> Footer:
        self._store.require(file)
        return read_footer(self._store, file)

    def _load_table(self, key: tuple[str, range | None]) -> TableFile:
        file, groups = key
        self._store.require(file)
        footer = None if groups is None else self._footers.get(file)
        return read_table_file(self._store, file, self._keys, groups, footer)

    def _load_cells(self, key: tuple[str, str, int]) -> Cells:
        return read_cells(self._store, *key, self._footers.get(key[0]))

    def _count(self, frames: int) -> None:
        with self._lock:
            self.num_decoded += frames
