"""A dataset, opened where it lies: cameras, usable episodes, faults, and their numbers and pictures by frame index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data import hub
from vlarge.data.check import Fault
from vlarge.data.config import Source
from vlarge.data.formats import lerobot, rlds
from vlarge.data.formats.lerobot_reader import LeRobotReader
from vlarge.data.formats.rlds_reader import RldsReader
from vlarge.data.manifest import Camera, Episode, EpisodeTable, Manifest
from vlarge.data.picture import to_rgb, write_rgb
from vlarge.data.transforms import resize_with_pad

__all__ = ["Camera", "Dataset", "Episode", "EpisodeTable", "Fault", "open_dataset", "summary"]


class Dataset:
    """What `open_dataset` returns. Threads may share one.

    episodes: those that can be read whole and were not excluded, by number; positions in `Order` count these.
    cameras: every declared one; `camera_keys`: those that are used, in the dataset's order.
    """

    def __init__(self, root: Path, manifest: Manifest, config: Source) -> None:
        self.root = root
        self.format: str = manifest.format
        self.fps: float = manifest.fps
        self.features: Mapping[str, Mapping[str, Any]] = manifest.features
        self.cameras: dict[str, Camera] = dict(manifest.cameras)
        self.episodes: tuple[Episode, ...] = manifest.episodes
        self.faults: tuple[Fault, ...] = manifest.faults
        self.state_dim = manifest.state_dim
        self.action_dim = manifest.action_dim
        self.state_key, self.action_key = config.state_key, config.action_key
        self.camera_keys = tuple(
            k for k, c in self.cameras.items() if c.present and (not config.cameras or k in config.cameras)
        )
        self._manifest = manifest
        self._reader = (RldsReader if manifest.format == rlds.FORMAT else LeRobotReader)(root, manifest, config)

    @property
    def num_frames(self) -> int:
        return int(self.lengths.sum())

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 [episodes]: their frames."""
        return np.array([e.length for e in self.episodes], np.int64)

    @property
    def tasks(self) -> list[str]:
        """The tasks that frames of usable episodes have, by task_index."""
        used = dict.fromkeys(task for e in self.episodes for task in e.tasks)
        known = [text for _, text in sorted(self._manifest.task_texts.items())]
        return [text for text in dict.fromkeys([*known, *used]) if text in used]

    @property
    def num_decoded(self) -> int:
        """Frames decoded so far."""
        return self._reader.num_decoded

    def read_table(self, episode: Episode) -> EpisodeTable:
        """State, action and task of every frame of an episode. Raises InputError naming the file."""
        return self._reader.read_table(episode)

    def starts_afresh(self, episode: Episode, camera_keys: Sequence[str], frames: np.ndarray) -> np.ndarray:
        """bool [n]: whether each of these frames (ascending) is decoded without what the frames before it need."""
        return self._reader.starts_afresh(episode, camera_keys, frames)

    def gop_frames(self, camera_keys: Sequence[str]) -> int:
        """The usual distance of two key frames, over these cameras: the largest. 1 where every picture stands alone."""
        if not self.episodes:
            return 1
        return max((self._reader.gop_frames(self.episodes[0], key) for key in camera_keys), default=1)

    def iter_frames(
        self, episode: Episode, camera_key: str, frame_indices: Sequence[int], size: int | None = None
    ) -> Iterator[np.ndarray]:
        """Each frame as uint8 [H, W, 3] RGB; with `size`, resized with padding to [size, size] as it is decoded.

        frame_indices: ascending, without repeats. Every frame is checked against its time stamp in the file, and no
        frame is decoded twice. Raises InputError naming episode, file and frame when one cannot be had.
        """
        if any(b <= a for a, b in pairwise(frame_indices)):
            raise ValueError(f"frame indices must ascend: {list(frame_indices)}")
        if len(frame_indices) and not 0 <= frame_indices[0] <= frame_indices[-1] < episode.length:
            raise IndexError(f"episode {episode.index} has {episode.length} frames: {list(frame_indices)}")
        if len(frame_indices):
            for picture in self._reader.pictures(episode, camera_key, frame_indices):
                image = to_rgb(picture)
                yield image if size is None else resize_with_pad(image, size)

    def fill_frames(
        self, episode: Episode, camera_key: str, frame_indices: Sequence[int], outs: Sequence[np.ndarray]
    ) -> None:
        """Decode each frame straight into its array, uint8 [H, W, 3], resized with padding where that has another size.

        As `iter_frames` otherwise.
        """
        pictures = self._reader.pictures(episode, camera_key, frame_indices)
        for picture, out in zip(pictures, outs, strict=True):
            write_rgb(picture, out)

    def read_frames(
        self, episode: Episode, camera_key: str, frame_indices: Sequence[int], size: int | None = None
    ) -> np.ndarray:
        """The same frames together: uint8 [k, H, W, 3]."""
        images = list(self.iter_frames(episode, camera_key, frame_indices, size))
        return np.stack(images) if images else np.zeros((0, size or 0, size or 0, 3), np.uint8)

    @cached_property
    def revision(self) -> str:
        """Hash of what decides the samples: metadata, names and sizes of the data files, usable episodes."""
        digest = hashlib.sha256()
        for file in self._manifest.metadata_files:
            digest.update(file.encode() + b"\0" + (self.root / file).read_bytes())
        files = {e.table_file for e in self.episodes} | {p.file for e in self.episodes for p in e.videos.values()}
        sizes = [(file, (self.root / file).stat().st_size) for file in sorted(files)]
        digest.update(json.dumps([sizes, [(e.index, e.length) for e in self.episodes], self.camera_keys]).encode())
        return digest.hexdigest()[:16]


def open_dataset(config: Source) -> Dataset:
    """Open the dataset that a recipe's [data] table names, checking every file it has.

    Raises InputError in one line: no such path, not a dataset, metadata that cannot be read, a feature or camera that
    it does not have. Lesser faults cost at most the episodes they are in and are listed in `Dataset.faults`; see
    `check.require_trainable` for a dataset with nothing left.
    """
    root = hub.resolve(config.path, config.revision)
    found = next((one for one in (lerobot, rlds) if one.matches(root)), None)
    if found is None:
        raise InputError(
            f"{root} is not a dataset: it has no meta/info.json (LeRobot) and no dataset_info.json (RLDS); "
            "give the folder that holds one of them"
        )
    return Dataset(root, found.index(root, config), config)


def summary(dataset: Dataset) -> dict[str, Any]:
    """What `vlarge data info --json` prints."""
    return {
        "format": dataset.format,
        "num_episodes": len(dataset.episodes),
        "num_frames": dataset.num_frames,
        "fps": dataset.fps,
        "cameras": {
            key: {"height": c.height, "width": c.width, "codec": c.codec, "present": c.present}
            for key, c in dataset.cameras.items()
        },
        "features": {key: {"dtype": f["dtype"], "shape": f["shape"]} for key, f in dataset.features.items()},
        "tasks": dataset.tasks,
        "revision": dataset.revision,
        "faults": [asdict(fault) for fault in dataset.faults],
    }
