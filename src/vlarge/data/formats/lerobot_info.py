"""meta/info.json of a LeRobot dataset: what it declares, and what about it is odd."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import FaultLog, Refused, did_you_mean
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_metadata import read_json
from vlarge.data.manifest import Listed

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
PICTURES = ("video", "image")
DEPTH_KEYS = ("is_depth_map", "video.is_depth_map")  # LeRobot's since 0.6, and before


@dataclass(frozen=True)
class Info:
    """What meta/info.json says, as far as it is needed."""

    version: str
    fps: float
    features: dict[str, dict[str, Any]]
    raw: dict[str, Any]

    @property
    def cameras(self) -> list[str]:
        """Colour image features, video or not. A depth map is another kind of data."""
        return [k for k, f in self.features.items() if f["dtype"] in PICTURES and not _is_depth(f)]

    @property
    def depth_maps(self) -> list[str]:
        """Image features that are left out."""
        return [k for k, f in self.features.items() if f["dtype"] in PICTURES and _is_depth(f)]

    @property
    def videos(self) -> list[str]:
        return [key for key in self.cameras if self.features[key]["dtype"] == "video"]

    def codec(self, key: str) -> str:
        return str(video_info(self.features[key]).get("video.codec", ""))

    def image_size(self, key: str) -> tuple[int, int]:
        """(height, width); the shape is [H, W, C] or [C, H, W]."""
        shape = self.features[key]["shape"]
        if len(shape) != 3:
            return 0, 0
        return (shape[1], shape[2]) if shape[0] <= 4 < shape[2] else (shape[0], shape[1])


def video_info(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `info` of a camera (`video_info` in older datasets)."""
    found = feature.get("info") or feature.get("video_info")
    return found if isinstance(found, dict) else {}


def _is_depth(feature: Mapping[str, Any]) -> bool:
    places = (feature, feature.get("info"), feature.get("video_info"))
    return any(place.get(key) for place in places if isinstance(place, Mapping) for key in DEPTH_KEYS)


def read_info(store: Store) -> Info:
    """Raises Refused naming what cannot be read or understood."""
    raw = read_json(store, INFO)
    version = raw.get("codebase_version") if isinstance(raw, dict) else None
    if version not in VERSIONS:
        detail = f"codebase_version is {version!r}; supported are {', '.join(VERSIONS)}"
        raise Refused(store, "info_unknown_version", INFO, detail)
    fps = raw.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise Refused(store, "bad_info", INFO, f"fps is {fps!r}, not a positive number")
    if not isinstance(raw.get("data_path"), str) or not isinstance(raw.get("video_path") or "", str):
        raise Refused(store, "bad_info", INFO, "data_path and video_path should be path templates")
    return Info(version, float(fps), _features(store, raw.get("features")), raw)


def _features(store: Store, features: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(features, dict):
        raise Refused(store, "bad_info", INFO, "it has no table of features")
    for key, feature in features.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        good = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
        if not good or not isinstance(feature.get("dtype"), str):
            raise Refused(store, "bad_info", INFO, f"feature {key!r} needs a dtype and a shape, it is {feature!r:.80}")
    return features


def check_request(store: Store, info: Info, config: Source) -> None:
    """Raise Refused for a feature that the recipe names and the dataset does not have."""
    for name, key in (("state_key", config.state_key), ("action_key", config.action_key)):
        if key not in info.features:
            numbers = [k for k, f in info.features.items() if f["dtype"] not in PICTURES]
            known = f"set data.{name} to one of: {', '.join(numbers)}"
            raise Refused(store, "missing_feature", INFO, f"no feature {key!r}{did_you_mean(key, numbers)}; {known}")
    for key in config.cameras:
        if key not in info.cameras:
            known = ", ".join(info.cameras) or "none"
            note = ", it is a depth map" if key in info.depth_maps else did_you_mean(key, info.cameras)
            detail = f"no camera {key!r} (data.cameras){note}; it has: {known}"
            raise Refused(store, "missing_camera", INFO, detail)


def check_listing(store: Store, info: Info, config: Source, listed: Sequence[Listed], log: FaultLog) -> None:
    """Compare what info.json and the recipe count with the episodes that metadata lists. Raises InputError."""
    numbers = [e.index for e in listed]
    twice = next((a for a, b in pairwise(numbers) if a == b), None)
    if twice is not None:
        raise Refused(store, "duplicate_episode", "meta", f"episode {twice} is listed twice")
    unknown = set(config.exclude_episodes) - set(numbers)
    if unknown:
        held = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise InputError(f"{store}: data.exclude_episodes names episode {min(unknown)}; the dataset has {held}")
    for name, found in (("total_episodes", len(listed)), ("total_frames", sum(e.length for e in listed))):
        total = info.raw.get(name)
        if isinstance(total, int) and total != found:
            log.report("wrong_totals", INFO, f"{name} is {total}, metadata lists {found}")
    _check_splits(info, len(listed), log)


def _check_splits(info: Info, num_episodes: int, log: FaultLog) -> None:
    splits = info.raw.get("splits")
    for name, span in splits.items() if isinstance(splits, dict) else ():
        stop = re.fullmatch(r"\s*\d+\s*:\s*(\d+)\s*", str(span))
        if stop and int(stop[1]) > num_episodes:
            detail = f"split {name!r} is {span}, there are {num_episodes} episodes; what is there is used"
            log.report("splits_too_large", INFO, detail)


def check_stats(store: Store, info: Info, cameras: Sequence[str], log: FaultLog) -> None:
    """Report statistics that others may miss; vlarge takes its own from the data."""
    if info.version == "v2.1":
        if not store.exists("meta/episodes_stats.jsonl"):
            log.report("stats_missing", "meta/episodes_stats.jsonl", "no statistics; they are computed from the data")
        return
    file = "meta/stats.json"
    if not store.exists(file):
        log.report("stats_missing", file, "no statistics; they are computed from the data")
        return
    try:
        stats = read_json(store, file)
    except Refused as refusal:
        log.report("bad_stats", file, f"{refusal.fault.detail}; statistics are computed from the data")
        return
    if not isinstance(stats, dict):
        log.report("bad_stats", file, "it has no table of features; statistics are computed from the data")
        return
    without = [key for key in cameras if key not in stats]
    if without:
        log.report("image_stats_missing", file, f"no statistics for {', '.join(without)}; none are needed")
