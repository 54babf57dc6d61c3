"""A dataset, opened where it lies: cameras, usable episodes, faults, and their numbers and pictures by frame index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data import hub, quarantine
from vlarge.data.check import Fault, usable_spans
from vlarge.data.config import DataConfig, Source
from vlarge.data.fetch import Patience, Store, is_address, open_store
from vlarge.data.formats import lerobot, rlds
from vlarge.data.formats.lerobot_reader import LeRobotReader
from vlarge.data.formats.rlds_reader import RldsReader
from vlarge.data.index_cache import obtain
from vlarge.data.manifest import Camera, Episode, EpisodeTable, Manifest
from vlarge.data.picture import to_rgb, write_rgb
from vlarge.data.transforms.resize import PADDINGS, resize_with_pad

__all__ = ["Camera", "Dataset", "Episode", "EpisodeTable", "Fault", "open_dataset", "require_dataset", "summary"]


class Dataset:
    """What `open_dataset` returns. Threads may share one.

    episodes: those that can be read whole and were not excluded, by number; positions in `Order` count these.
    lengths: int64 [episodes], their frames. revision: hash of what decides the samples: metadata, names and sizes of
    the data files, usable episodes, cameras.
    cameras: every declared one; `camera_keys`: those that are used, in the dataset's order.
    """

    def __init__(self, store: Store, manifest: Manifest, config: Source) -> None:
        self.store = store
        self.format: str = manifest.format
        self.fps: float = manifest.fps
        self.features: Mapping[str, Mapping[str, Any]] = manifest.features
        self.cameras: dict[str, Camera] = dict(manifest.cameras)
        self.episodes: Sequence[Episode] = manifest.episodes
        self.lengths = manifest.lengths
        self.faults: Sequence[Fault] = manifest.faults
        self.revision: str = manifest.revision
        self.state_dim = manifest.state_dim
        self.action_dim = manifest.action_dim
        self.state_key, self.action_key = config.state_key, config.action_key
        self.camera_keys = _used_cameras(manifest, config)
        self._manifest = manifest
        self._config = config
        self._reader = (RldsReader if manifest.format == rlds.FORMAT else LeRobotReader)(store, manifest, config)

    @property
    def root(self) -> str:
        """Where it lies, for messages."""
        return str(self.store)

    @property
    def num_frames(self) -> int:
        return int(self.lengths.sum())

    def without(self, numbers: Collection[int]) -> Dataset:
        """The dataset as it is opened with these episodes excluded; nothing is looked at again."""
        episodes = tuple(e for e in self.episodes if e.index not in numbers)
        faults = tuple(f for f in self.faults if f.episode not in numbers)
        manifest = replace(self._manifest, episodes=episodes, faults=faults)
        revision = _revision(self.store, manifest, self.camera_keys)
        return Dataset(self.store, replace(manifest, revision=revision), self._config)

    @property
    def tasks(self) -> list[str]:
        """The tasks that frames of usable episodes have, by task_index."""
        used = dict.fromkeys(self._manifest.used_tasks)
        known = [text for _, text in sorted(self._manifest.task_texts.items())]
        return [text for text in dict.fromkeys([*known, *used]) if text in used]

    def spans(self, action_horizon: int) -> np.ndarray:
        """int64 [S, 3] of (episode position, first frame, length): the frames at which a sample may start."""
        whole = np.stack([np.arange(len(self.lengths)), np.zeros_like(self.lengths), self.lengths], axis=1)
        parts = []
        for i in self._manifest.with_bad_rows:
            episode = self.episodes[i]
            usable = usable_spans(episode.length, episode.bad_rows, action_horizon)
            parts += [(i, first, stop - first) for first, stop in usable]
        kept = np.delete(whole, self._manifest.with_bad_rows, axis=0)
        return np.concatenate([kept, np.array(parts, np.int64).reshape(-1, 3)])

    @property
    def num_decoded(self) -> int:
        """Frames decoded so far."""
        return self._reader.num_decoded

    def stamp_of(self, file: str) -> str:
        """Eight characters that change when the file is written to."""
        return hashlib.sha256(self.store.stamp_of(file).encode()).hexdigest()[:8]

    def read_table(self, episode: Episode) -> EpisodeTable:
        """State, action and task of every frame of an episode. Raises InputError naming the file."""
        return self._reader.read_table(episode)

    def starts_afresh(self, episode: Episode, camera_keys: Sequence[str], frames: np.ndarray) -> np.ndarray:
        """bool [n]: whether each of these frames (ascending) is decoded without what the frames before it need."""
        return self._reader.starts_afresh(episode, camera_keys, frames)

    def num_packets(self, episode: Episode, camera_key: str, frame_indices: Sequence[int]) -> int:
        """Frames that have to be decoded for these (ascending)."""
        return self._reader.num_packets(episode, camera_key, frame_indices)

    def gop_frames(self, camera_keys: Sequence[str]) -> int:
        """The usual distance of two key frames, over these cameras: the largest. 1 where every picture stands alone."""
        if not self.episodes:
            return 1
        return max((self._reader.gop_frames(self.episodes[0], key) for key in camera_keys), default=1)

    def iter_frames(
        self, episode: Episode, camera_key: str, frame_indices: Sequence[int], size: int | None = None
    ) -> Iterator[np.ndarray]:
        """Each frame as uint8 [H, W, 3] RGB; with `size`, resized with padding to [size, size] as it is decoded.

        frame_indices: ascending, without repeats. Every picture carries the time stamp of its frame, and no frame is
        decoded twice. Raises InputError naming episode, file and frame when one cannot be had.
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
        self,
        episode: Episode,
        camera_key: str,
        frame_indices: Sequence[int],
        outs: Sequence[np.ndarray],
        padding: str = PADDINGS[0],
    ) -> None:
        """Decode each frame straight into its array, uint8 [H, W, 3], resized with padding where that has another size.

        As `iter_frames` otherwise.
        """
        pictures = self._reader.pictures(episode, camera_key, frame_indices)
        for picture, out in zip(pictures, outs, strict=True):
            write_rgb(picture, out, padding)

    def read_frames(
        self, episode: Episode, camera_key: str, frame_indices: Sequence[int], size: int | None = None
    ) -> np.ndarray:
        """The same frames together: uint8 [k, H, W, 3]."""
        images = list(self.iter_frames(episode, camera_key, frame_indices, size))
        return np.stack(images) if images else np.zeros((0, size or 0, size or 0, 3), np.uint8)


def open_dataset(
    config: Source,
    index_dir: str = DataConfig.index_dir,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    remote_cache_bytes: int = DataConfig.remote_cache_bytes,
    remote_deadline_s: float = DataConfig.remote_deadline_s,
) -> Dataset:
    """Open the dataset that a recipe's [data] table names, checking every file it has.

    What is found is kept in `index_dir` and used again for as long as no file changes; for the rest see DataConfig.
    on_progress: called with (files checked, files in all) where it has to be found.
    Raises InputError in one line: no such path, not a dataset, metadata that cannot be read, a feature or camera that
    it does not have. Lesser faults cost at most the episodes they are in and are listed in `Dataset.faults`; see
    `check.require_trainable` for a dataset with nothing left.
    """
    kept = Path(index_dir).expanduser()
    store, found = _find(config, kept, remote_cache_bytes, remote_deadline_s)
    listed = quarantine.read_list(config.quarantine) if config.quarantine else None

    def whole_revision() -> str:  # of the dataset as `vlarge data check` opens it
        whole = Source(
            path=config.path, revision=config.revision, state_key=config.state_key, action_key=config.action_key
        )
        dataset = open_dataset(
            whole,
            index_dir,
            on_progress,
            remote_cache_bytes=remote_cache_bytes,
            remote_deadline_s=remote_deadline_s,
        )
        return dataset.revision

    def build() -> Manifest:
        if listed is not None:
            listed.require(whole_revision())
        manifest = found.index(store, config, on_progress)
        if listed is not None:
            manifest = quarantine.leave_out(manifest, listed.episodes)
        return replace(manifest, revision=_revision(store, manifest, _used_cameras(manifest, config)))

    return Dataset(store, obtain(store, config, kept, build), config)


def require_dataset(config: DataConfig) -> None:
    """Raise InputError for a path of the run that is no dataset, or no quarantine list.

    Reads next to nothing, so it can come first. An object store is not asked: to list it takes long.
    """
    for source in config.parts():
        if not is_address(source.path):
            _find(source, Path(config.index_dir).expanduser(), config.remote_cache_bytes, config.remote_deadline_s)
        if source.quarantine:
            quarantine.read_list(source.quarantine)


def _find(source: Source, kept: Path, remote_cache_bytes: int, remote_deadline_s: float) -> tuple[Store, ModuleType]:
    address = hub.resolve_dataset(source.path, source.revision)
    store = open_store(address, Patience(remote_deadline_s), kept / "blocks", remote_cache_bytes)
    found = next((one for one in (lerobot, rlds) if one.matches(store)), None)
    if found is None:
        raise InputError(
            f"{store} is not a dataset: it has no meta/info.json (LeRobot) and no dataset_info.json (RLDS); "
            "give the folder that holds one of them"
        )
    return store, found


def _used_cameras(manifest: Manifest, config: Source) -> tuple[str, ...]:
    return tuple(k for k, c in manifest.cameras.items() if c.present and (not config.cameras or k in config.cameras))


def _revision(store: Store, manifest: Manifest, camera_keys: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for file in manifest.metadata_files:
        digest.update(file.encode() + b"\0" + store.read(file))
    files = {e.table_file for e in manifest.episodes} | {p.file for e in manifest.episodes for p in e.videos.values()}
    sizes = [(file, store.size(file)) for file in sorted(files)]
    episodes = [(e.index, e.length, e.bad_rows) for e in manifest.episodes]
    digest.update(json.dumps([sizes, episodes, camera_keys]).encode())
    return digest.hexdigest()[:16]


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
