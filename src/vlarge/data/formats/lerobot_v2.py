"""LeRobot v2.0 and v2.1: one parquet and one mp4 per camera for each episode; metadata as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlarge.data.check import FaultLog, Refused
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_metadata import fill, read_jsonl
from vlarge.data.manifest import Listed

EPISODES = "meta/episodes.jsonl"
TASKS = "meta/tasks.jsonl"
# Where LeRobot itself puts files, whatever a template says.
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def metadata_files(store: Store) -> list[str]:
    return [file for file in (EPISODES, TASKS) if store.exists(file)]


def read_tasks(store: Store) -> dict[int, str]:
    """task_index -> text."""
    if not store.exists(TASKS):
        return {}
    return {
        int(_value(store, TASKS, n, row, "task_index", int)): str(row.get("task", ""))
        for n, row in read_jsonl(store, TASKS)
    }


def list_episodes(store: Store, info: Mapping[str, Any], cameras: Sequence[str], log: FaultLog) -> list[Listed]:
    """Every episode that metadata lists, by number. A template that finds nothing gives way to LeRobot's own layout."""
    files = _Files(store, info)
    listed = []
    for number, row in read_jsonl(store, EPISODES):
        index = _value(store, EPISODES, number, row, "episode_index", int)
        length = _value(store, EPISODES, number, row, "length", int)
        tasks = tuple(str(text) for text in row.get("tasks") or ())
        videos = {key: (files.video(index, key), None) for key in cameras}
        listed.append(Listed(index, length, tasks, files.table(index), videos))
    if files.num_misnamed:
        template = f"data_path {info['data_path']!r}, video_path {info.get('video_path')!r}"
        detail = f"{template}: {files.num_misnamed} files are not there but at {DATA_PATH} and {VIDEO_PATH}"
        log.report("bad_chunk_template", "meta/info.json", detail)
    return sorted(listed, key=lambda e: e.index)


class _Files:
    # Finds the files of an episode and counts those that the templates do not lead to.

    def __init__(self, store: Store, info: Mapping[str, Any]) -> None:
        self._store = store
        self._info = info
        self._chunk_episodes = max(1, int(info.get("chunks_size") or 1000))
        self.num_misnamed = 0

    def table(self, index: int) -> str:
        return self._find("data_path", DATA_PATH, index, {})

    def video(self, index: int, key: str) -> str:
        return self._find("video_path", VIDEO_PATH, index, {"video_key": key})

    def _find(self, name: str, usual: str, index: int, fields: Mapping[str, str]) -> str:
        numbers: dict[str, int | str] = {
            **fields,
            "episode_chunk": index // self._chunk_episodes,
            "episode_index": index,
        }
        given = fill(self._store, name, self._info.get(name) or usual, numbers)
        if self._store.exists(given):
            return given
        other = fill(self._store, name, usual, numbers)
        if not self._store.exists(other):
            return given
        self.num_misnamed += 1
        return other


def _value(store: Store, file: str, line: int, row: Any, key: str, kind: type) -> Any:
    value = row.get(key) if isinstance(row, dict) else None
    if not isinstance(value, kind):
        raise Refused(store, "broken_jsonl_line", file, f"line {line}: {key!r} should be a whole number, is {value!r}")
    return value
