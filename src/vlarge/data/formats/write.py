"""Writes LeRobot v3.0: several episodes per parquet and mp4 file, exact statistics, all of it there or nothing."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.encode import Encoding, encode_clip, exact_rate
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
from vlarge.data.join import Clip
from vlarge.data.stats import Accumulator, PixelHistogram

if TYPE_CHECKING:
    import pyarrow as pa

EPISODES_PER_ROW_GROUP = 100
CLIPS = ".clips"  # where an episode's pictures lie until the episode is complete

type Frames = Iterable[np.ndarray] | np.ndarray | Clip


def _column(values: np.ndarray) -> pa.Array:
    # [n] and [n, 1] are scalars on disk, [n, dim] a list of fixed size.
    import pyarrow as pa

    flat = pa.array(values.ravel())
    return flat if values[0].size == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _check_episode(
    where: str, features: Mapping[str, dict[str, Any]], columns: Mapping[str, np.ndarray], images: Mapping[str, Frames]
) -> None:
    """Raise InputError unless exactly the features are given, in their shapes and types, with finite values."""
    expected = [name for name in features if name not in describe.INDEX_FEATURES]
    if differing := sorted(set(expected) ^ {*columns, *images}):
        raise InputError(f"{where}: missing or unexpected: {', '.join(differing)}")
    length = len(columns[STATE])
    if length == 0:
        raise InputError(f"{where} has no frame; leave it out")
    for name, values in {**columns, **{k: v for k, v in images.items() if isinstance(v, np.ndarray)}}.items():
        shape, dtype = (length, *features[name]["shape"]), features[name]["dtype"].replace("video", "uint8")
        if (*values.shape, 1)[: len(shape)] != shape or values.ndim > len(shape) or values.dtype != dtype:
            raise InputError(f"{where}: {name} is {values.dtype} {list(values.shape)}, expected {dtype} {list(shape)}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            frame = int(np.isfinite(values.reshape(length, -1)).all(1).argmin())
            raise InputError(f"{where}: NaN or inf in {name} at frame {frame}; leave the episode out or mend it")


def checked_frames(
    where: str, frames: Iterable[np.ndarray], shape: list[int], pixels: PixelHistogram
) -> Iterator[np.ndarray]:
    """The frames as they come, counted into `pixels`. Raises InputError for one of another size or type."""
    for number, image in enumerate(frames):
        if image.dtype != np.uint8 or list(image.shape) != shape:
            raise InputError(f"{where}: frame {number} is {image.dtype} {list(image.shape)}, expected uint8 {shape}")
        pixels.add(image[None])
        yield image


class LeRobotWriter:
    """Records a LeRobot v3.0 dataset, episode by episode. Nothing lies at `root` until `finish`.

        with LeRobotWriter(root, fps=80, cameras={"observation.images.top": (96, 96)}, ...) as writer:
            writer.add_episode(task, states, actions, images)
            writer.finish()

    Leaving the block without `finish` discards everything. The bytes depend on the episodes and their order only.
    encoding: how pictures become video, those that do not come as video already (`Clip`).
    Raises InputError when `root` exists, is being written by another, or `fps` is not positive.
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
        encoding: Encoding | None = None,
        data_file_bytes: int = 100 * 2**20,
        video_file_bytes: int = 200 * 2**20,
    ) -> None:
        if not 0 < fps < 1e6:
            raise InputError(f"fps = {fps}: a dataset needs a positive number of frames per second")
        self._rate = exact_rate(fps)
        self._encoding = encoding or Encoding()
        self._robot_type = robot_type
        self._file_bytes = data_file_bytes, video_file_bytes
        self._features = describe.features(cameras, state_names, action_names)
        self._tasks: dict[str, int] = {}
        self._num_episodes = self._num_frames = 0
        self._rows: dict[str, Accumulator] = {}
        self._pixels = {key: PixelHistogram() for key in cameras}
        self._pending: list[dict[str, Any]] = []
        self._stage = StagedFolder(root)
        folder = self._stage.path
        self._data = ParquetSeries(folder, DATA_PATH, data_file_bytes)
        self._episodes = ParquetSeries(folder, EPISODES_PATH, data_file_bytes)
        self._videos = [VideoSeries(folder, key, self._rate, video_file_bytes) for key in cameras]
        self._series: list[ParquetSeries | VideoSeries] = [self._data, self._episodes, *self._videos]

    def add_episode(
        self,
        tasks: str | Sequence[str],
        states: np.ndarray,
        actions: np.ndarray,
        images: Mapping[str, Frames],
        extra: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Append one episode of n frames.

        tasks: one for all frames, or one per frame. states, actions: [n, dim], stored as float32.
        images: camera key -> n frames, uint8 [H, W, 3], as an array or as they come; or a `Clip`, copied as it is.
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
        where = f"episode {self._num_episodes}"
        _check_episode(where, features, columns, images)
        task_of = [tasks] * len(states) if isinstance(tasks, str) else list(tasks)
        if len(task_of) != len(states):
            raise InputError(f"{where}: {len(task_of)} tasks for {len(states)} frames; give one, or one per frame")
        try:
            clips = {key: self._clip(where, key, images[key], len(states)) for key in self._pixels}
            self._features = features
            self._append(task_of, columns, clips)
        finally:
            shutil.rmtree(self._stage.path / CLIPS, ignore_errors=True)

    def _clip(self, where: str, key: str, frames: Frames, length: int) -> Clip:
        """The pictures as video that can be joined; encoded beside the dataset unless they are so already."""
        if isinstance(frames, Clip):
            clip = frames
        else:
            self._encoding.check_size(key, *self._features[key]["shape"][:2])
            path, pixels = self._stage.path / CLIPS / f"{key}.mp4", PixelHistogram()
            checked = checked_frames(f"{where}, {key}", frames, self._features[key]["shape"], pixels)
            num_frames = encode_clip(path, checked, self._encoding, self._rate)
            clip = Clip(path, 0, num_frames, pixels, self._encoding)
        if clip.num_frames != length:
            raise InputError(f"{where}: {key} has {clip.num_frames} frames for {length} rows")
        return clip

    def _append(self, tasks: list[str], columns: dict[str, np.ndarray], clips: Mapping[str, Clip]) -> None:
        length = len(tasks)
        numbers = [self._tasks.setdefault(task, len(self._tasks)) for task in tasks]
        columns = columns | self._index_columns(np.array(numbers))
        meta = {
            "episode_index": self._num_episodes,
            "tasks": list(dict.fromkeys(tasks)),
            "length": length,
            **self._write_rows(columns),
        }
        for video in self._videos:
            meta |= video.add(clips[video.key])
        self._pending.append({**meta, **self._episode_stats(columns, clips)})
        self._num_episodes += 1
        self._num_frames += length
        if len(self._pending) == EPISODES_PER_ROW_GROUP:
            self._flush_episodes()

    def _index_columns(self, task_index: np.ndarray) -> dict[str, np.ndarray]:
        length = len(task_index)
        frame = np.arange(length)
        return {
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(length, self._num_episodes),
            "index": self._num_frames + frame,
            "task_index": task_index,
        }

    def _write_rows(self, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
        import pyarrow as pa

        table = pa.table({name: _column(values) for name, values in columns.items()})
        schema = json.dumps(describe.hugging_face_schema(self._features))
        chunk, number = self._data.place(table.nbytes)
        self._data.write(table.replace_schema_metadata({"huggingface": schema}))
        start, place = self._num_frames, {"data/chunk_index": chunk, "data/file_index": number}
        return {**place, "dataset_from_index": start, "dataset_to_index": start + table.num_rows}

    def _episode_stats(self, columns: Mapping[str, np.ndarray], clips: Mapping[str, Clip]) -> dict[str, Any]:
        stats = {}
        for name, values in columns.items():
            rows, own = values.reshape(len(values), -1), Accumulator()
            own.add(rows)
            self._rows.setdefault(name, Accumulator()).add(rows)
            stats[name] = describe.stats_of(own)
        for key, clip in clips.items():
            self._pixels[key].merge(clip.pixels)
            stats[key] = describe.pixel_stats_of(clip.pixels, clip.num_frames)
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
        for video in self._videos:
            self._features[video.key]["info"] = self._camera_info(video)
        stats = {name: describe.stats_of(rows) for name, rows in self._rows.items()}
        stats |= {key: describe.pixel_stats_of(pixels, self._num_frames) for key, pixels in self._pixels.items()}
        meta = self._stage.path / "meta"
        (meta / "stats.json").write_text(json.dumps(stats, indent=4))
        (meta / "info.json").write_text(json.dumps(self._info(), indent=4))
        describe.write_tasks(meta / "tasks.parquet", list(self._tasks))
        self._stage.publish()

    @property
    def _fps(self) -> float:
        return self._rate.numerator if self._rate.denominator == 1 else float(self._rate)

    def _camera_info(self, video: VideoSeries) -> dict[str, Any]:
        height, width, _ = self._features[video.key]["shape"]
        return describe.camera_info(self._fps, (height, width), video.stream_info)

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
