"""LeRobot datasets in place (v2.0, v2.1, v3.0): metadata and files compared, so that every fault has its episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from vlarge.contracts import InputError
from vlarge.data.check import FaultLog, Refused
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.formats import lerobot_v2, lerobot_v3
from vlarge.data.formats.lerobot_info import INFO, check_listing, check_request, check_stats, read_info
from vlarge.data.formats.lerobot_rows import RowCheck
from vlarge.data.formats.lerobot_videos import VideoCheck
from vlarge.data.manifest import Camera, Episode, Listed, Manifest, VideoPart

LAYOUTS = {"v2.0": lerobot_v2, "v2.1": lerobot_v2, "v3.0": lerobot_v3}


def matches(store: Store) -> bool:
    """Whether the store looks like a LeRobot dataset."""
    return store.exists(INFO)


def index(store: Store, config: Source, on_progress: Callable[[int, int], None] | None = None) -> Manifest:
    """Everything about the dataset in `store`. Raises InputError when it cannot be opened; lesser faults are listed.

    on_progress: called with (files checked, files in all) as the work goes on.
    """
    return _Index(store, config, on_progress).manifest()


class _Index:
    # Files that are missing first, then rows, then videos: an episode is left out for its first fault.

    def __init__(self, store: Store, config: Source, on_progress: Callable[[int, int], None] | None) -> None:
        self.store = store
        self.config = config
        self.info = read_info(store)
        check_request(store, self.info, config)
        self.log = FaultLog()
        for key in self.info.depth_maps:
            self.log.report("depth_camera", INFO, f"{key} is a depth map; only pictures in colour are used")
        self.layout = LAYOUTS[self.info.version]
        self.listed = self.layout.list_episodes(store, self.info.raw, self.info.videos, self.log)
        check_listing(store, self.info, config, self.listed, self.log)
        tasks = self.layout.read_tasks(store, self.log)
        keys = config.state_key, config.action_key
        self.rows = RowCheck(store, self.info.fps, keys, tasks, self.log, self._count_file)
        self.videos: dict[str, VideoCheck] = {}
        self.exists = cache(store.exists)  # many episodes lie in one file
        self.on_progress = on_progress
        self.num_done = self.num_files = 0

    def manifest(self) -> Manifest:
        present = [key for key in self.info.videos if any(self._has_video(e, key) for e in self.listed)]
        used = [key for key in present if key in self._wanted]
        if self._good() and set(self._wanted) & set(self.info.videos) and not used:
            raise self._no_videos()
        for episode in self._good():
            self._check_missing(episode, used)
        self.num_files = self._num_files(used)
        self.rows.run(self._good())
        pictures = [key for key in self.info.cameras if key not in self.info.videos]
        in_tables = [key for key in pictures if self.rows.has_column(key)]
        self.rows.require([key for key in in_tables if key in self._wanted], self._good())
        self._check_unlisted()
        self._check_videos(used)
        cameras = {key: self._camera(key, key in present or key in in_tables) for key in self.info.cameras}
        check_stats(self.store, self.info, [key for key, c in cameras.items() if c.present], self.log)
        self._check_shapes()
        return Manifest(
            format=f"lerobot-{self.info.version}",
            fps=self.info.fps,
            features=self.info.features,
            cameras=cameras,
            episodes=tuple(self._episode(e) for e in self._good()),
            faults=self.log.faults(self.config.exclude_episodes),
            state_dim=self.rows.state_dim,
            action_dim=self.rows.action_dim,
            task_texts=self.rows.tasks,
            metadata_files=(INFO, *self.layout.metadata_files(self.store)),
            video_files={file: video for check in self.videos.values() for file, video in check.files.items()},
        )

    def _check_unlisted(self) -> None:
        # Rows that no listed episode claims would make an epoch shorter in silence.
        listed = {e.index: e for e in self.listed}
        for number, num_rows in sorted(self.rows.num_rows.items()):
            if number not in listed:
                detail = f"{num_rows} rows are of this episode, which metadata does not list; they are not used"
                self.log.report("unlisted_episode", "data", detail, number)
        for episode in self.listed:
            if episode.length == 0 and not self.log.is_out(episode.index):
                self._check_empty(episode)
        known = {e.table_file for e in self.listed}
        files = [e.name for e in self.store.list_files("data") if e.name.endswith(".parquet") and e.name not in known]
        if files:
            detail = f"metadata lists no episode for {len(files)} data files, this is the first; they are not used"
            self.log.report("unlisted_file", files[0], detail)

    def _check_empty(self, episode: Listed) -> None:
        if num_rows := self.rows.num_rows.get(episode.index):
            detail = f"its length is 0, but {num_rows} rows are of it"
            self.log.leave_out(episode.index, "bad_length", episode.table_file, detail)
        else:
            self.log.report("zero_length_episode", "meta", "its length is 0; it is skipped", episode.index)

    def _check_videos(self, cameras: Sequence[str]) -> None:
        doubtful = [e.index for e in self.listed if e.index not in self.rows.num_rows and self.log.is_out(e.index)]
        for key in cameras:
            check = VideoCheck(self.store, key, self.info.fps, self.log, self._count_file, self.rows.num_rows, doubtful)
            check.run([e for e in self.listed if e.length > 0 or self.rows.num_rows[e.index]])
            self.videos[key] = check
            if check.turned:
                detail = f"{key} is shown turned by players; pictures are used as they are stored"
                self.log.report("rotated_video", check.turned[0], detail)

    @property
    def _wanted(self) -> Sequence[str]:
        return self.config.cameras or self.info.cameras

    def _good(self) -> list[Listed]:
        excluded = self.config.exclude_episodes
        return [e for e in self.listed if e.length > 0 and e.index not in excluded and not self.log.is_out(e.index)]

    def _num_files(self, cameras: Sequence[str]) -> int:
        videos = {e.videos[key].file for e in self.listed for key in cameras if key in e.videos}
        return len(videos) + len({e.table_file for e in self._good()})

    def _count_file(self) -> None:
        self.num_done += 1
        if self.on_progress:
            self.on_progress(self.num_done, self.num_files)

    def _has_video(self, episode: Listed, key: str) -> bool:
        return key in episode.videos and self.exists(episode.videos[key].file)

    def _no_videos(self) -> Refused:
        looked = next((file for e in self.listed for file, *_ in e.videos.values()), "videos")
        found = next((e.name for e in self.store.list_files() if e.name.endswith(".mp4")), "")
        if not found:
            return Refused(
                self.store, "missing_mp4", looked, "no mp4 is anywhere in the dataset; is the download complete?"
            )
        detail = f"no video lies where {INFO} says; found {found} instead: rename its folder or mend video_path"
        return Refused(self.store, "videos_folder_renamed", looked, detail)

    def _check_missing(self, episode: Listed, cameras: Sequence[str]) -> None:
        files = [episode.table_file, *(episode.videos[key].file for key in cameras if key in episode.videos)]
        missing = [file for file in files if not self.exists(file)]
        if not missing:
            return
        if self.info.version != "v3.0":
            kind = "partial_download"
        elif len(files) > 1 and missing == files:
            kind = "extra_episode"
        else:
            kind = "missing_parquet" if missing[0] == episode.table_file else "missing_mp4"
        detail = f"{len(missing)} of the episode's {len(files)} files do not exist"
        self.log.leave_out(episode.index, kind, missing[0], detail)

    def _camera(self, key: str, present: bool) -> Camera:
        height, width = self.info.image_size(key)
        codec = self.info.codec(key) if key in self.info.videos else "image"
        if not present and self.listed:
            if key in self.config.cameras:
                raise InputError(f"{self.store}: camera {key!r} (data.cameras) is declared but has no files")
            self.log.report("phantom_camera", INFO, f"{key} is declared but has no files; it is not used")
        check = self.videos.get(key)
        if not check or not check.sizes:
            return Camera(key, height, width, codec, present)
        real, file = next(iter(check.sizes.items()))
        if set(check.sizes) != {(height, width)}:
            sizes = ", ".join(f"{h}x{w}" for h, w in check.sizes)
            self.log.report("wrong_resolution", file, f"{key} is {sizes} where {INFO} says {height}x{width}")
        return Camera(key, *real, check.codec, present)

    def _check_shapes(self) -> None:
        dims = {self.config.state_key: self.rows.state_dim, self.config.action_key: self.rows.action_dim}
        for key, dim in dims.items():
            shape = self.info.features[key]["shape"]
            if dim != math.prod(shape) and self.rows.columns:
                detail = f"{key} is declared as {shape}, the data have {dim} values; the data decide"
                self.log.report("shape_mismatch", INFO, detail)

    def _episode(self, listed: Listed) -> Episode:
        rows = self.rows.found[listed.index]
        videos = {k: VideoPart(listed.videos[k].file, c.first_frames[listed.index]) for k, c in self.videos.items()}
        return Episode(
            listed.index, listed.length, rows.tasks, listed.table_file, rows.first_row, videos, rows.bad_rows
        )
