"""Numbered files of a LeRobot v3.0 dataset, each filled with several episodes before the next begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlarge.data.encode import Mp4Writer

if TYPE_CHECKING:
    import pyarrow as pa

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_CHUNK = 1000
# LeRobot compares times as float32 within 1e-4 s, which beyond 1,024 s is finer than float32 itself.
MAX_VIDEO_S = 1000


class ParquetSeries:
    """A new file begins when a table would take the present one beyond `max_bytes`."""

    def __init__(self, folder: Path, template: str, max_bytes: int) -> None:
        self._folder, self._template, self._max_bytes = folder, template, max_bytes
        self._number = -1
        self._file: Any = None
        self._writer: Any = None

    def place(self, num_bytes: int) -> tuple[int, int]:
        """Chunk and number of the file that takes the next table, of `num_bytes` in memory."""
        if self._writer is None or self._file.tell() + num_bytes > self._max_bytes:
            self.close()
            self._number += 1
        return divmod(self._number, FILES_PER_CHUNK)

    def write(self, table: pa.Table) -> None:
        """Write the table as one row group where `place` said."""
        import pyarrow.parquet as pq

        if self._writer is None:
            chunk, number = divmod(self._number, FILES_PER_CHUNK)
            path = self._folder / self._template.format(chunk_index=chunk, file_index=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="snappy")
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with self._file:
                writer.close()


class VideoSeries:
    """The mp4 files of one camera; a new one begins once the present one has reached `max_bytes`."""

    def __init__(self, folder: Path, key: str, size: tuple[int, int], fps: int, max_bytes: int) -> None:
        self.key = key
        self._folder, self._size, self._fps, self._max_bytes = folder, size, fps, max_bytes
        self._number = -1
        self._writer: Mp4Writer | None = None

    def add(self, images: np.ndarray) -> dict[str, Any]:
        """Append an episode, uint8 [n, H, W, 3]; returns where it lies, as columns of meta/episodes."""
        if self._writer is not None and self._is_full(self._writer, len(images)):
            self.close()
        if self._writer is None:
            self._number += 1
            self._writer = self._open()
        start = self._writer.num_frames
        self._writer.add(images)
        chunk, number = divmod(self._number, FILES_PER_CHUNK)
        return {
            f"videos/{self.key}/chunk_index": chunk,
            f"videos/{self.key}/file_index": number,
            f"videos/{self.key}/from_timestamp": start / self._fps,
            f"videos/{self.key}/to_timestamp": self._writer.num_frames / self._fps,
        }

    def _is_full(self, writer: Mp4Writer, num_frames: int) -> bool:
        too_long = writer.num_frames + num_frames > MAX_VIDEO_S * self._fps
        return too_long or writer.num_bytes >= self._max_bytes

    def _open(self) -> Mp4Writer:
        chunk, number = divmod(self._number, FILES_PER_CHUNK)
        name = VIDEO_PATH.format(video_key=self.key, chunk_index=chunk, file_index=number)
        height, width = self._size
        return Mp4Writer(self._folder / name, fps=self._fps, height=height, width=width)

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
