"""Numbered files of a LeRobot v3.0 dataset, each filled with several episodes before the next begins."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlarge.data.join import Clip, Mp4Joiner

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
    """The mp4 files of one camera. A new one begins once the present one has reached `max_bytes`, or where a clip does
    not fit the present one.

    stream_info: what info.json says of the stream; empty before the first clip.
    """

    def __init__(self, folder: Path, key: str, rate: Fraction, max_bytes: int) -> None:
        self.key = key
        self.stream_info: dict[str, Any] = {}
        self._folder, self._rate, self._max_bytes = folder, rate, max_bytes
        self._number = -1
        self._joiner: Mp4Joiner | None = None

    def add(self, clip: Clip) -> dict[str, Any]:
        """Append an episode; returns where it lies, as columns of meta/episodes."""
        if self._joiner is not None and self._is_full(self._joiner, clip):
            self.close()
        if self._joiner is None:
            self._number += 1
            self._joiner = self._open(clip)
        start = self._joiner.num_frames
        self._joiner.add(clip)
        chunk, number = divmod(self._number, FILES_PER_CHUNK)
        return {
            f"videos/{self.key}/chunk_index": chunk,
            f"videos/{self.key}/file_index": number,
            f"videos/{self.key}/from_timestamp": float(start / self._rate),
            f"videos/{self.key}/to_timestamp": float(self._joiner.num_frames / self._rate),
        }

    def _is_full(self, joiner: Mp4Joiner, clip: Clip) -> bool:
        too_long = joiner.num_frames + clip.num_frames > MAX_VIDEO_S * self._rate
        return too_long or joiner.num_bytes >= self._max_bytes or not joiner.fits(clip)

    def _open(self, clip: Clip) -> Mp4Joiner:
        chunk, number = divmod(self._number, FILES_PER_CHUNK)
        name = VIDEO_PATH.format(video_key=self.key, chunk_index=chunk, file_index=number)
        joiner = Mp4Joiner(self._folder / name, clip, self._rate)
        self.stream_info = self.stream_info or joiner.stream_info
        return joiner

    def close(self) -> None:
        if self._joiner is not None:
            joiner, self._joiner = self._joiner, None
            joiner.close()
