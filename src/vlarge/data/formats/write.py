"""Writes LeRobot v3.0: several episodes per parquet and mp4 file, exact statistics, all of it there or nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.formats import describe
from vlarge.data.formats.series import (
    DATA_PATH,
    EPISODES_PATH,
    FILES_PER_CHUNK,
    VIDEO_PATH,
    ParquetSeries,
    VideoSeries,
)
from vlarge.data.formats.staging import StagedFolder
from vlarge.data.stats import Accumulator, PixelHistogram

if TYPE_CHECKING:
    import pyarrow as pa

EPISODES_PER_ROW_GROUP = 100


def _column(values: np.ndarray) -> pa.Array:
    # [n] and [n, 1] are scalars on disk, [n, dim] a list of fixed size.
    import pyarrow as pa

    flat = pa.array(values.ravel())
    return flat if values[0].size == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _check_episode(where: str, features: Mapping[str, dict[str, Any]], given: Mapping[str, np.ndarray]) -> None:
    """Raise InputError unless `given` holds exactly the features, in their shapes and types, with finite values."""
    expected = [name for name in features if name not in describe.INDEX_FEATURES]
    if set(expected) != set(given):
        raise InputError(f"{where}: missing or unexpected: {', '.join(sorted(set(expected) ^ set(given)))}")
    length = len(given[STATE])
    if length == 0:
        raise InputError(f"{where} has no frame; leave it out")
    for name in expected:
        values, shape = given[name], (length, *features[name]["shape"])
        dtype = features[name]["dtype"].replace("video", "uint8")
        if (*values.shape, 1)[: len(shape)] != shape or values.ndim > len(shape) or values.dtype != dtype:
            raise InputError(f"{where}: {name} is {values.dtype} {list(values.shape)}, expected {dtype} {list(shape)}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            frame = int(np.isfinite(values.reshape(length, -1)).all(1).argmin())
            raise InputError(f"{where}: NaN or inf in {name} at frame {frame}; leave the episode out or mend it")


class LeRobotWriter:
    """Records a LeRobot v3.0 dataset, episode by episode. Nothing lies at `root` until `finish`.

        with LeRobotWriter(root, fps=80, cameras={"observation.images.top": (96, 96)}, ...) as writer:
            writer.add_episode(task, states, actions, images)
            writer.finish()

    Leaving the block without `finish` discards everything. The bytes depend on the episodes and their order only.
    Raises InputError when `root` exists, is being written by another, or `fps` is not a whole number.
    """

    def __init__(
        self,
        root: Path,
        *,
        fps: float,
        cameras: Mapping[str, tuple[int, int]],
        state_names: Sequence[str],
        action_names: Sequence[str],
        robot_type: str,
        data_file_bytes: int = 100 * 2**20,
        video_file_bytes: int = 200 * 2**20,
    ) -> None:
        if fps <= 0 or fps != int(fps):
            raise InputError(f"fps = {fps}: a LeRobot dataset needs a whole number of frames per second")
        self._fps = int(fps)
        self._robot_type = robot_type
        self._file_bytes = data_file_bytes, video_file_bytes
        self._features = describe.features(self._fps, cameras, state_names, action_names)
        self._tasks: dict[str, int] = {}
        self._num_episodes = self._num_frames = 0
        self._rows: dict[str, Accumulator] = {}
        self._pixels = {key: PixelHistogram() for key in cameras}
        self._pending: list[dict[str, Any]] = []
        self._stage = StagedFolder(root)
        folder = self._stage.path
        self._data = ParquetSeries(folder, DATA_PATH, data_file_bytes)
        self._episodes = ParquetSeries(folder, EPISODES_PATH, data_file_bytes)
        self._videos = [VideoSeries(folder, key, size, self._fps, video_file_bytes) for key, size in cameras.items()]
        self._series: list[ParquetSeries | VideoSeries] = [self._data, self._episodes, *self._videos]

    def add_episode(
        self,
        task: str,
        states: np.ndarray,
        actions: np.ndarray,
        images: Mapping[str, np.ndarray],
        extra: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Append one episode of n frames.

        states, actions: [n, dim], stored as float32. images: camera key -> uint8 [n, H, W, 3].
        extra: further columns, name -> [n] or [n, dim]; every episode must bring those of the first.
        Raises InputError, naming episode and frame, for NaN, inf or a shape that does not fit; nothing is added then.
        """
        extra = extra or {}
        if taken := {STATE, ACTION, *describe.INDEX_FEATURES} & set(extra):
            raise InputError(f"extra columns cannot be called {', '.join(sorted(taken))}; choose other names")
        columns = {STATE: np.asarray(states, np.float32), ACTION: np.asarray(actions, np.float32), **extra}
        features = self._features
        if self._num_episodes == 0:
            features = features | {name: describe.numeric_feature(values) for name, values in extra.items()}
        _check_episode(f"episode {self._num_episodes}", features, {**images, **columns})
        self._features = features
        columns |= self._index_columns(len(states), self._tasks.setdefault(task, len(self._tasks)))
        meta = {
            "episode_index": self._num_episodes,
            "tasks": [task],
            "length": len(states),
            **self._write_rows(columns),
        }
        for video in self._videos:
            meta |= video.add(images[video.key])
        self._pending.append({**meta, **self._episode_stats(columns, images)})
        self._num_episodes += 1
        self._num_frames += len(states)
        if len(self._pending) == EPISODES_PER_ROW_GROUP:
            self._flush_episodes()

    def _index_columns(self, length: int, task_index: int) -> dict[str, np.ndarray]:
        frame = np.arange(length)
        return {
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(length, self._num_episodes),
            "index": self._num_frames + frame,
            "task_index": np.full(length, task_index),
        }

    def _write_rows(self, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
        import pyarrow as pa

        table = pa.table({name: _column(values) for name, values in columns.items()})
        schema = json.dumps(describe.hugging_face_schema(self._features))
        chunk, number = self._data.place(table.nbytes)
        self._data.write(table.replace_schema_metadata({"huggingface": schema}))
        start, place = self._num_frames, {"data/chunk_index": chunk, "data/file_index": number}
        return {**place, "dataset_from_index": start, "dataset_to_index": start + table.num_rows}

    def _episode_stats(self, columns: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray]) -> dict[str, Any]:
        stats = {}
        for name, values in columns.items():
            rows, own = values.reshape(len(values), -1), Accumulator()
            own.add(rows)
            self._rows.setdefault(name, Accumulator()).add(rows)
            stats[name] = describe.stats_of(own)
        for key, frames in images.items():
            pixels = PixelHistogram()
            pixels.add(frames)
            self._pixels[key].merge(pixels)
            stats[key] = describe.pixel_stats_of(pixels, len(frames))
        return {f"stats/{name}/{kind}": value for name, kinds in stats.items() for kind, value in kinds.items()}

    def _flush_episodes(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_pylist(self._pending)
        chunk, number = self._episodes.place(table.nbytes)
        for name, value in (("meta/episodes/chunk_index", chunk), ("meta/episodes/file_index", number)):
            table = table.append_column(name, pa.array([value] * len(table), pa.int64()))
        self._episodes.write(table)
        self._pending = []

    def finish(self) -> None:
        """Write the metadata and put the dataset in its place. Raises InputError when there is no episode."""
        if self._num_episodes == 0:
            raise InputError(f"{self._stage.root}: no episode was recorded, so there is no dataset to write")
        if self._pending:
            self._flush_episodes()
        for series in self._series:
            series.close()
        stats = {name: describe.stats_of(rows) for name, rows in self._rows.items()}
        stats |= {key: describe.pixel_stats_of(pixels, self._num_frames) for key, pixels in self._pixels.items()}
        meta = self._stage.path / "meta"
        (meta / "stats.json").write_text(json.dumps(stats, indent=4))
        (meta / "info.json").write_text(json.dumps(self._info(), indent=4))
        describe.write_tasks(meta / "tasks.parquet", list(self._tasks))
        self._stage.publish()

    def _info(self) -> dict[str, Any]:
        data_file_bytes, video_file_bytes = self._file_bytes
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot_type,
            "total_episodes": self._num_episodes,
            "total_frames": self._num_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": max(1, data_file_bytes // 2**20),
            "video_files_size_in_mb": max(1, video_file_bytes // 2**20),
            "fps": self._fps,
            "splits": {"train": f"0:{self._num_episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._videos else None,
            "features": self._features,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stage.is_open:
            return
        for series in self._series:
            with contextlib.suppress(Exception):  # for instance a full disk: what is discarded need not be complete
                series.close()
        self._stage.discard()
