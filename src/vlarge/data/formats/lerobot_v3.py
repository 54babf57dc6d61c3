"""LeRobot v3.0: many episodes per file; meta/episodes/**.parquet says which file and from which second on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlarge.data.check import BrokenFile, FaultLog, Refused
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_info import INFO
from vlarge.data.formats.lerobot_metadata import check_length, task_texts, whole_number
from vlarge.data.formats.parquet_file import column_names, read_parquet
from vlarge.data.formats.path_template import fill
from vlarge.data.manifest import Listed, Place

if TYPE_CHECKING:
    import pyarrow.parquet as pq

EPISODES = "meta/episodes"
TASKS = "meta/tasks.parquet"
BASE_COLUMNS = ("episode_index", "length", "data/chunk_index", "data/file_index")


def metadata_files(store: Store) -> list[str]:
    return [*_episode_files(store), *([TASKS] if store.exists(TASKS) else [])]


def _episode_files(store: Store) -> list[str]:
    return [entry.name for entry in store.list_files(EPISODES) if entry.name.endswith(".parquet")]


def read_tasks(store: Store, log: FaultLog) -> dict[int, str]:
    """task_index -> text."""
    if not store.exists(TASKS):
        log.report("missing_tasks", TASKS, "the file does not exist; tasks are those that metadata lists by episode")
        return {}
    try:
        columns = _read_columns(store, TASKS, None)
    except BrokenFile as error:
        log.report("bad_tasks", TASKS, error.detail)
        return {}
    texts = _texts(columns)
    if "task_index" not in columns or texts is None:
        log.report("bad_tasks", TASKS, "it should have a column task_index and one with the texts, called task")
        return {}
    return task_texts(TASKS, zip(columns["task_index"], texts, strict=True), log)


def _texts(columns: Mapping[str, list[Any]]) -> list[Any] | None:
    # pandas wrote them as its index, called "task" or without a name; else there must be no choice.
    texts = {name: values for name, values in columns.items() if all(isinstance(v, str | None) for v in values)}
    for name in ("task", "__index_level_0__"):
        if name in texts:
            return texts[name]
    texts.pop("task_index", None)
    return next(iter(texts.values())) if len(texts) == 1 else None


def list_episodes(store: Store, info: Mapping[str, Any], cameras: Sequence[str], log: FaultLog) -> list[Listed]:
    """Every episode that metadata lists, by number."""
    listed: list[Listed] = []
    files = _episode_files(store)
    if not files and info.get("total_episodes") != 0:
        raise Refused(store, "missing_metadata", EPISODES, "it has no parquet file that lists episodes")
    for file in files:
        try:
            columns = _read_columns(store, file, ("tasks", *BASE_COLUMNS, *_video_columns(cameras)))
        except BrokenFile as error:
            log.leave_out_file("bad_episodes_file", file, f"the episodes it lists are left out: {error.detail}")
            continue
        for name in BASE_COLUMNS:
            if name not in columns:
                raise Refused(store, "missing_column", file, f"it has no column {name!r}")
        for i in range(len(columns["length"])):
            row = {name: values[i] for name, values in columns.items()}
            listed.append(_listed(store, info, cameras, row, f"{file} row {i}", log))
    if files and not listed and log.faults():
        raise Refused(store, "bad_episodes_file", files[0], "no file that lists episodes can be read")
    return sorted(listed, key=lambda e: e.index)


def _video_columns(cameras: Sequence[str]) -> list[str]:
    names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    return [f"videos/{key}/{name}" for key in cameras for name in names]


def _listed(
    store: Store, info: Mapping[str, Any], cameras: Sequence[str], row: Mapping[str, Any], where: str, log: FaultLog
) -> Listed:
    index = whole_number(row["episode_index"])
    if index is None:
        detail = f"episode_index should be a whole number, it is {row['episode_index']!r:.40}"
        raise Refused(store, "bad_episode", where, detail)
    chunk, number = whole_number(row["data/chunk_index"]), whole_number(row["data/file_index"])
    table_file = ""
    if chunk is not None and number is not None:
        fields = {"chunk_index": chunk, "file_index": number}
        table_file = fill(store, INFO, "data_path", info["data_path"], fields)
    else:
        log.leave_out(index, "missing_parquet", where, "data/chunk_index or data/file_index is not a whole number")
    tasks = row.get("tasks")
    return Listed(
        index=index,
        length=check_length(row["length"], index, where, log),
        tasks=tuple(map(str, tasks)) if isinstance(tasks, list) else (),
        table_file=table_file,
        videos={key: place for key in cameras if (place := _place(store, info, key, row))},
    )


def _place(store: Store, info: Mapping[str, Any], key: str, row: Mapping[str, Any]) -> Place | None:
    chunk, number, start_s, stop_s = (row.get(name) for name in _video_columns([key]))
    fields = {"video_key": key, "chunk_index": whole_number(chunk), "file_index": whole_number(number)}
    if None in fields.values() or not info.get("video_path"):
        return None
    known = {name: value for name, value in fields.items() if value is not None}
    file = fill(store, INFO, "video_path", info["video_path"], known)
    return Place(file, _seconds(start_s), _seconds(stop_s))


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _read_columns(store: Store, file: str, wanted: Sequence[str] | None) -> dict[str, list[Any]]:
    """Raises BrokenFile."""

    def read(parquet: pq.ParquetFile) -> dict[str, list[Any]]:
        names = [name for name in column_names(parquet) if wanted is None or name in wanted]
        table = parquet.read(columns=names)
        return {name: table[name].to_pylist() for name in table.column_names}

    return read_parquet(store, file, read)
