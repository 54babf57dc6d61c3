"""What a conversion does with each camera, at which rate, and whether what lies in a folder belongs to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import BrokenFile, states_rate
from vlarge.data.encode import Encoding
from vlarge.data.formats.staging import StagedFolder
from vlarge.data.index import Dataset
from vlarge.data.join import clip_packets
from vlarge.data.mp4 import VideoFile, read_video_file

PLAN = "plan.json"


@dataclass(frozen=True)
class CameraPlan:
    """Size of a camera's pictures in the copy; encoding: None where the video is copied packet by packet.

    number: its place among the cameras.
    """

    key: str
    number: int
    height: int
    width: int
    encoding: Encoding | None

    @property
    def shape(self) -> list[int]:
        return [self.height, self.width, 3]


def plan_cameras(dataset: Dataset, size: int | None, encoding: Encoding | None) -> tuple[CameraPlan, ...]:
    """How each camera of the dataset is converted.

    size: pictures become [size, size, 3]; None keeps theirs. encoding: None copies video that needs no change and can
    be cut at its episodes, and encodes the rest by default. Raises InputError for a size that the codec cannot hold.
    """
    if size is not None and not 16 <= size <= 4096:
        raise InputError(f"size is {size}; pictures can have 16 to 4096 pixels")
    return tuple(_plan_camera(dataset, n, key, size, encoding) for n, key in enumerate(dataset.camera_keys))


def _plan_camera(dataset: Dataset, number: int, key: str, size: int | None, encoding: Encoding | None) -> CameraPlan:
    videos = _videos(dataset, key)
    own = {(video.height, video.width) for video in videos.values()}
    if size is None and len(own) > 1:
        sizes = ", ".join(f"{h}x{w}" for h, w in sorted(own))
        raise InputError(f"{dataset.root}: {key} has pictures of {sizes}; make them equal with --size")
    camera = dataset.cameras[key]
    height, width = (camera.height, camera.width) if size is None else (size, size)
    if encoding is None and own == {(height, width)} and _copyable(dataset, key, videos):
        return CameraPlan(key, number, height, width, None)
    chosen = encoding or Encoding()
    chosen.check_size(key, height, width)
    return CameraPlan(key, number, height, width, chosen)


def _videos(dataset: Dataset, key: str) -> dict[str, VideoFile]:
    """The tables of a camera's files that can be read here; none where pictures are not video."""
    files = {episode.videos[key].file for episode in dataset.episodes if key in episode.videos}
    if dataset.store.local_path("") is None:
        return {}
    try:
        return {file: read_video_file(dataset.store, file) for file in files}
    except BrokenFile:
        return {}


def _copyable(dataset: Dataset, key: str, videos: dict[str, VideoFile]) -> bool:
    """Whether every episode's packets can be cut out."""
    parts = [(episode.videos.get(key), episode.length) for episode in dataset.episodes]
    return all(p is not None and clip_packets(videos[p.file], p.first_frame, n) is not None for p, n in parts)


def plan_rate(dataset: Dataset, fps: float | None) -> float:
    """Frames per second of the copy: the dataset's own, or `fps` where it does not say. Raises InputError."""
    if fps is not None and not 0 < fps < 1e6:
        raise InputError(f"fps is {fps:g}; give the number of frames in a second")
    if states_rate(dataset):
        if fps is not None and fps != dataset.fps:
            raise InputError(
                f"{dataset.root}: it has {dataset.fps:.9g} frames a second, not {fps:.9g}; leave out --fps"
            )
        return dataset.fps
    if fps is None:
        raise InputError(f"{dataset.root}: it does not say how many frames a second has; give the number with --fps")
    return fps


def claim(out: Path, dataset: Dataset, cameras: Sequence[CameraPlan], size: int | None, fps: float) -> StagedFolder:
    """The folder beside `out` to work in, with what an earlier run of the same conversion left there.

    Raises InputError when `out` exists, another process is at it, or what was left belongs to another conversion.
    """
    stage = StagedFolder(out, resume=True)
    plan = _plan(dataset, cameras, size, fps)
    try:
        left = _read(stage.path / PLAN)
        if left is None:
            stage.clear()
            (stage.path / PLAN).write_text(json.dumps(plan))
        elif left != plan:
            differing = ", ".join(sorted(k for k in plan if left.get(k) != plan[k]))
            raise InputError(
                f"{stage.path} holds an interrupted conversion that differs in: {differing}; finish it with the "
                "command it was started with, or remove that folder"
            )
    except BaseException:
        stage.leave()
        raise
    return stage


def _plan(dataset: Dataset, cameras: Sequence[CameraPlan], size: int | None, fps: float) -> dict[str, Any]:
    plan = {
        "source": dataset.root,
        "revision": dataset.revision,
        "episodes": [[e.index, e.length] for e in dataset.episodes],
        "size": size,
        "fps": fps,
        "cameras": [asdict(camera) for camera in cameras],
    }
    as_read: dict[str, Any] = json.loads(json.dumps(plan))  # tuples become lists
    return as_read


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # killed before it was written
    return found if isinstance(found, dict) else None
