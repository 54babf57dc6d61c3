"""LeRobot v2.0 and v2.1: one parquet and one mp4 per camera for each episode; metadata as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlarge.data.check import FaultLog, Refused
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_info import INFO
from vlarge.data.formats.lerobot_metadata import check_length, read_jsonl, task_texts, whole_number
from vlarge.data.formats.path_template import fill
from vlarge.data.manifest import Listed, Place

EPISODES = "meta/episodes.jsonl"
TASKS = "meta/tasks.jsonl"
# Where LeRobot itself puts files, whatever a template says.
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def metadata_files(store: Store) -> list[str]:
    return [file for file in (EPISODES, TASKS) if store.exists(file)]


def read_tasks(store: Store, log: FaultLog) -> dict[int, str]:
    """task_index -> text."""
    if not store.exists(TASKS):
        log.report("missing_tasks", TASKS, "the file does not exist; tasks are those that metadata lists by episode")
        return {}
    rows = (row if isinstance(row, dict) else {} for _, row in read_jsonl(store, TASKS))
    return task_texts(TASKS, ((row.get("task_index"), row.get("task")) for row in rows), log)


def list_episodes(store: Store, info: Mapping[str, Any], cameras: Sequence[str], log: FaultLog) -> list[Listed]:
    """Every episode that metadata lists, by number. A template that finds nothing gives way to LeRobot's own layout."""
    files = _Files(store, info)
    listed = []
    seen: dict[int, Any] = {}
    for number, row in read_jsonl(store, EPISODES):
        index = whole_number(row.get("episode_index")) if isinstance(row, dict) else None
        if index is None:
            detail = f"line {number}: it should have a whole number as episode_index, it is {row!r:.60}"
            raise Refused(store, "broken_jsonl_line", EPISODES, detail)
        if seen.setdefault(index, row) is not row and seen[index] == row:
            log.report("repeated_line", EPISODES, f"line {number} repeats an earlier one", index)
            continue
        tasks = row.get("tasks")
        listed.append(
            Listed(
                index=index,
                length=check_length(row.get("length"), index, f"{EPISODES} line {number}", log),
                tasks=tuple(map(str, tasks)) if isinstance(tasks, list) else (),
                table_file=files.table(index),
                videos={key: Place(files.video(index, key)) for key in cameras},
            )
        )
    if files.num_misnamed:
        template = f"data_path {info['data_path']!r}, video_path {info.get('video_path')!r}"
        detail = f"{template}: {files.num_misnamed} files are not there but at {DATA_PATH} and {VIDEO_PATH}"
        log.report("bad_chunk_template", INFO, detail)
    return sorted(listed, key=lambda e: e.index)


class _Files:
    # Finds the files of an episode and counts those that the templates do not lead to.

    def __init__(self, store: Store, info: Mapping[str, Any]) -> None:
        self._store = store
        self._info = info
        self._chunk_episodes = max(1, whole_number(info.get("chunks_size")) or 1000)
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
        given = fill(self._store, INFO, name, self._info.get(name) or usual, numbers)
        if self._store.exists(given):
            return given
        other = fill(self._store, INFO, name, usual, numbers)
        if not self._store.exists(other):
            return given
        self.num_misnamed += 1
        return other
