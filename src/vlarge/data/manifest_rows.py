"""Episodes, faults and videos as Arrow tables, and back: as objects that are made when one is asked for."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from vlarge.data.arrow_numbers import as_numpy
from vlarge.data.check import Fault, Unreachable
from vlarge.data.fetch import Store
from vlarge.data.manifest import Episode, EpisodeRows, Rows
from vlarge.data.mp4 import VideoFile

if TYPE_CHECKING:
    import pyarrow as pa


def column(table: pa.Table, name: str) -> np.ndarray:
    """A column of numbers, not copied."""
    return as_numpy(_array(table, name))


def _array(table: pa.Table, name: str) -> pa.Array:
    # Tables here are written in one piece.
    import pyarrow as pa

    chunks = table[name].chunks
    return chunks[0] if chunks else pa.nulls(0, table.schema.field(name).type)


class Names(Rows[str]):
    """A column of texts."""

    def __init__(self, table: pa.Table, name: str) -> None:
        self._values = _array(table, name)

    def __len__(self) -> int:
        return len(self._values)

    def _make(self, row: int) -> str:
        return str(self._values[row].as_py())


class Numbering:
    """Gives each text a number, in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def table(self) -> pa.Table:
        import pyarrow as pa

        return pa.table({"text": pa.array(list(self._numbers), pa.large_string())})


def episode_table(episodes: Sequence[Episode], files: Numbering, texts: Numbering) -> pa.Table:
    """Columns of EpisodeRows; `<camera>/file` and `<camera>/first_frame` for each camera."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "index": np.array([e.index for e in episodes], np.int64),
        "length": np.array([e.length for e in episodes], np.int64),
        "table_file": np.array([files[e.table_file] for e in episodes], np.int32),
        "first_row": np.array([e.first_row for e in episodes], np.int64),
        "tasks": _lists([[texts[task] for task in e.tasks] for e in episodes], np.int32),
        "bad_rows": _lists([e.bad_rows for e in episodes], np.int64),
    }
    for key in dict.fromkeys(key for e in episodes for key in e.videos):
        parts = [e.videos.get(key) for e in episodes]
        columns[f"{key}/file"] = np.array([files[p.file] if p else -1 for p in parts], np.int32)
        columns[f"{key}/first_frame"] = np.array([p.first_frame if p else 0 for p in parts], np.int64)
    return pa.table(columns)


def _lists(rows: Sequence[Sequence[int]], dtype: type) -> pa.LargeListArray:
    import pyarrow as pa

    offsets = np.array([0, *accumulate(map(len, rows))], np.int64)
    return pa.LargeListArray.from_arrays(offsets, np.array([number for row in rows for number in row], dtype))


def _offsets_and_values(table: pa.Table, name: str, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    lists = _array(table, name)
    if not len(table):
        return np.zeros(1, np.int64), np.zeros(0, dtype)
    return as_numpy(lists.offsets), as_numpy(lists.values)


def episode_rows(table: pa.Table, files: Sequence[str], texts: Sequence[str]) -> EpisodeRows:
    """What `episode_table` wrote."""
    cameras = [name.removesuffix("/file") for name in table.column_names if name.endswith("/file")]
    return EpisodeRows(
        index_E=column(table, "index"),
        length_E=column(table, "length"),
        table_file_E=column(table, "table_file"),
        first_row_E=column(table, "first_row"),
        tasks=_offsets_and_values(table, "tasks", np.int32),
        bad_rows=_offsets_and_values(table, "bad_rows", np.int64),
        videos={key: (column(table, f"{key}/file"), column(table, f"{key}/first_frame")) for key in cameras},
        files=files,
        texts=texts,
    )


def fault_table(faults: Sequence[Fault]) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {"episode": pa.array([f.episode for f in faults], pa.int64())}
    for name in ("kind", "action", "file", "detail"):
        columns[name] = pa.array([getattr(f, name) for f in faults], pa.large_string())
    columns["frames"] = pa.array([f.frames for f in faults], pa.list_(pa.int64(), 2))
    return pa.table(columns)


class FaultRows(Rows[Fault]):
    """What `fault_table` wrote."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = {name: _array(table, name) for name in table.column_names}

    def __len__(self) -> int:
        return len(self._columns["kind"])

    def _make(self, row: int) -> Fault:
        about = {name: values[row].as_py() for name, values in self._columns.items()}
        frames = about.pop("frames")
        return Fault(**about, frames=tuple(frames) if frames else None)


def video_tables(files: Mapping[str, VideoFile]) -> dict[str, pa.Table]:
    """One row per file, by name; the packets of all files, and their frames as they are shown, file after file."""
    import pyarrow as pa

    videos = [files[file] for file in sorted(files)]
    arrays = [{name: getattr(v, name).astype(dtype) for name, dtype in _STORED.items()} for v in videos]
    joined = {
        name: np.concatenate([np.zeros(0, dtype), *(own[name] for own in arrays)]) for name, dtype in _STORED.items()
    }

    return {
        "videos": pa.table(
            {
                "file": pa.array([v.file for v in videos], pa.large_string()),
                "codec": pa.array([v.codec for v in videos], pa.string()),
                "extradata": pa.array([v.extradata for v in videos], pa.large_binary()),
                "height": pa.array([v.height for v in videos], pa.int32()),
                "width": pa.array([v.width for v in videos], pa.int32()),
                "ticks": pa.array([v.time_base.numerator for v in videos], pa.int64()),
                "per_second": pa.array([v.time_base.denominator for v in videos], pa.int64()),
                "file_bytes": pa.array([v.file_bytes for v in videos], pa.int64()),
                "packet_stop": np.cumsum([len(v.pts_P) for v in videos], dtype=np.int64),
                "frame_stop": np.cumsum([v.num_frames for v in videos], dtype=np.int64),
                "checksum": pa.array([_checksum(own.values()) for own in arrays], pa.int64()),
            }
        ),
        "packets": pa.table({name.removesuffix("_P"): joined[name] for name in _STORED if name.endswith("_P")}),
        "frames": pa.table({"packet": joined["frame_packets_F"]}),
    }


# A VideoFile's arrays as they are kept, and in the order of their checksum.
_STORED = {
    "offset_P": np.int64,
    "size_P": np.int64,
    "pts_P": np.int64,
    "is_key_P": np.uint8,
    "frame_packets_F": np.int32,
}


def _checksum(arrays: Iterable[np.ndarray]) -> int:
    # A wrong time here would make a wrong picture look like the right one, and the tables are too large to be read
    # whole at every start: each file's part of them is looked at when the file is.
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
    return checksum


class VideoRows(Mapping[str, VideoFile]):
    """What `video_tables` wrote, by file: a VideoFile's arrays lie in the tables."""

    def __init__(self, tables: Mapping[str, pa.Table], store: Store) -> None:
        videos, packets = tables["videos"], tables["packets"]
        self._store = store
        self._files = Names(videos, "file")
        self._about = {name: _array(videos, name) for name in videos.column_names}
        self._stops = column(videos, "packet_stop"), column(videos, "frame_stop")
        self._offset, self._size, self._pts = (column(packets, name) for name in ("offset", "size", "pts"))
        self._is_key = column(packets, "is_key")
        self._frame_packets = column(tables["frames"], "packet")

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __getitem__(self, file: str) -> VideoFile:
        row = bisect_left(self._files, file)
        if row == len(self._files) or self._files[row] != file:
            raise KeyError(file)
        about = {name: values[row].as_py() for name, values in self._about.items()}
        packets, frames = (slice(int(stop[row - 1]) if row else 0, int(stop[row])) for stop in self._stops)
        offset_P, size_P, pts_P, is_key_P = (a[packets] for a in (self._offset, self._size, self._pts, self._is_key))
        frame_packets_F = self._frame_packets[frames]
        if _checksum((offset_P, size_P, pts_P, is_key_P, frame_packets_F)) != about["checksum"]:
            raise Unreachable(
                f"{self._store.path(file)}: what the dataset's index keeps of it has changed on the disk;"
                " remove the folder data.index_dir and start again"
            )
        return VideoFile(
            store=self._store,
            file=file,
            codec=about["codec"],
            extradata=about["extradata"],
            height=about["height"],
            width=about["width"],
            time_base=Fraction(about["ticks"], about["per_second"]),
            offset_P=offset_P,
            size_P=size_P,
            pts_P=pts_P,
            is_key_P=is_key_P.view(bool),
            frame_packets_F=frame_packets_F,
            file_bytes=about["file_bytes"],
        )
