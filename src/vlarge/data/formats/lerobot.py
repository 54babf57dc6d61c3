"""LeRobot datasets in place (v2.0, v2.1, v3.0): metadata and files compared, so that every fault has its episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlarge.contracts import InputError
from vlarge.data.check import FaultLog, Refused
from vlarge.data.config import DataConfig
from vlarge.data.formats import lerobot_v2, lerobot_v3
from vlarge.data.formats.lerobot_info import INFO, Info, check_listing, check_request, read_info
from vlarge.data.formats.rows import RowCheck
from vlarge.data.formats.videos import VideoCheck
from vlarge.data.manifest import Camera, Episode, Listed, Manifest, VideoPart

LAYOUTS = {"v2.0": lerobot_v2, "v2.1": lerobot_v2, "v3.0": lerobot_v3}


def matches(root: Path) -> bool:
    """Whether the folder looks like a LeRobot dataset."""
    return (root / INFO).is_file()


def index(root: Path, config: DataConfig) -> Manifest:
    """Everything about the dataset at `root`. Raises InputError when it cannot be opened; lesser faults are listed."""
    info, log = read_info(root), FaultLog()
    check_request(root, info, config)
    layout = LAYOUTS[info.version]
    listed = layout.list_episodes(root, info.raw, info.videos, log)
    check_listing(root, info, config, listed, log)
    rows = RowCheck(root, info.fps, config.state_key, config.action_key, layout.read_tasks(root), log)
    candidates = [e for e in listed if e.length > 0 and e.index not in config.exclude_episodes]
    videos = _check_files(root, info, config, candidates, rows, log)
    good = [e for e in candidates if not log.is_out(e.index)]
    _check_shapes(info, config, rows, log)
    return Manifest(
        format=f"lerobot-{info.version}",
        fps=info.fps,
        features=info.features,
        cameras=_cameras(root, info, config, rows, videos, bool(candidates), log),
        episodes=tuple(_episode(e, rows, videos) for e in good),
        tasks=rows.tasks,
        faults=log.faults(config.exclude_episodes),
        state_dim=rows.state_dim or _width(info, config.state_key),
        action_dim=rows.action_dim or _width(info, config.action_key),
        metadata_files=(INFO, *layout.metadata_files(root)),
    )


def _check_files(
    root: Path, info: Info, config: DataConfig, candidates: Sequence[Listed], rows: RowCheck, log: FaultLog
) -> dict[str, VideoCheck]:
    # Missing files first, then rows, then videos: an episode is left out for its first fault.
    wanted = [key for key in config.cameras or info.cameras if key in info.videos]
    present = [key for key in wanted if any(_exists(root, e, key) for e in candidates)]
    if candidates and wanted and not present:
        raise _no_videos(root, candidates, wanted)
    for episode in candidates:
        _check_missing(root, info, episode, present, log)
    rows.run([e for e in candidates if not log.is_out(e.index)])
    videos = {key: VideoCheck(root, key, info.fps, log) for key in present}
    for check in videos.values():
        check.run([e for e in candidates if not log.is_out(e.index)])
    return videos


def _exists(root: Path, episode: Listed, key: str) -> bool:
    return key in episode.videos and (root / episode.videos[key][0]).is_file()


def _no_videos(root: Path, candidates: Sequence[Listed], wanted: Sequence[str]) -> Refused:
    looked = next((e.videos[key][0] for e in candidates for key in wanted if key in e.videos), wanted[0])
    found = next(iter(sorted(p.relative_to(root).as_posix() for p in root.rglob("*.mp4"))), None)
    there = f"found instead {found}; rename the folder or mend video_path in {INFO}" if found else "no mp4 is anywhere"
    return Refused(root, "videos_folder_renamed" if found else "missing_mp4", looked, f"no video is there; {there}")


def _check_missing(root: Path, info: Info, episode: Listed, cameras: Sequence[str], log: FaultLog) -> None:
    files = [episode.table_file, *(episode.videos[key][0] for key in cameras if key in episode.videos)]
    missing = [file for file in files if not (root / file).is_file()]
    if not missing:
        return
    if info.version != "v3.0":
        kind = "partial_download"
    elif len(files) > 1 and missing == files:
        kind = "extra_episode"
    else:
        kind = "missing_parquet" if missing[0] == episode.table_file else "missing_mp4"
    log.leave_out(episode.index, kind, missing[0], f"{len(missing)} of the episode's {len(files)} files do not exist")


def _cameras(
    root: Path, info: Info, config: DataConfig, rows: RowCheck, videos: Mapping[str, VideoCheck], any_listed: bool, log: FaultLog
) -> dict[str, Camera]:
    cameras = {}
    for key in info.cameras:
        height, width = info.image_size(key)
        check = videos.get(key)
        if check and check.sizes:
            if set(check.sizes) != {(height, width)}:
                real = ", ".join(f"{h}x{w}" for h, w in check.sizes)
                log.report("wrong_resolution", next(iter(check.sizes.values())), f"{key} is {real}, {INFO} says {height}x{width}")
            height, width = next(iter(check.sizes))
        in_table = key not in info.videos
        codec = "image" if in_table else (check.codec if check else "") or info.codec(key)
        present = bool(check) or (in_table and rows.has_column(key)) or (key in info.videos and key not in wanted_of(config, info))
        cameras[key] = Camera(key, height, width, codec, present)
    return cameras
