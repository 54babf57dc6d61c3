"""LeRobot v3.0: many episodes per file; meta/episodes/**.parquet says which file and from which second on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlarge.data.check import FaultLog, Refused
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_metadata import fill
from vlarge.data.manifest import Listed

EPISODES = "meta/episodes"
TASKS = "meta/tasks.parquet"
BASE_COLUMNS = ("episode_index", "length", "data/chunk_index", "data/file_index")


def metadata_files(store: Store) -> list[str]:
    return [*_episode_files(store), *([TASKS] if store.exists(TASKS) else [])]


def _episode_files(store: Store) -> list[str]:
    return [entry.name for entry in store.list_files(EPISODES) if entry.name.endswith(".parquet")]


def read_tasks(store: Store) -> dict[int, str]:
    """task_index -> text. pandas wrote the text as an index: the column is "task", or has no proper name at all."""
    if not store.exists(TASKS):
        return {}
    columns = _read_columns(store, TASKS, None)
    numbers = columns.pop("task_index", [])
    texts = columns.get("task") or next(iter(columns.values()), [])
    return {int(number): str(text) for number, text in zip(numbers, texts, strict=False)}


def list_episodes(store: Store, info: Mapping[str, Any], cameras: Sequence[str], log: FaultLog) -> list[Listed]:
    """Every episode that metadata lists, by number."""
    listed: list[Listed] = []
    for file in _episode_files(store):
        columns = _read_columns(store, file, ("tasks", *BASE_COLUMNS, *_video_columns(cameras)))
        for name in BASE_COLUMNS:
            if name not in columns:
                raise Refused(store, "missing_column", file, f"it has no column {name!r}")
        listed += [_listed(store, info, cameras, _row(columns, i)) for i in range(len(columns["length"]))]
    return sorted(listed, key=lambda e: e.index)


def _video_columns(cameras: Sequence[str]) -> list[str]:
    return [f"videos/{key}/{name}" for key in cameras for name in ("chunk_index", "file_index", "from_timestamp")]


def _row(columns: Mapping[str, Sequence[Any]], i: int) -> dict[str, Any]:
    return {name: values[i] for name, values in columns.items()}


def _listed(store: Store, info: Mapping[str, Any], cameras: Sequence[str], row: Mapping[str, Any]) -> Listed:
    numbers = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    videos: dict[str, tuple[str, float | None]] = {}
    for key in cameras:
        chunk, file, start_s = (row.get(name) for name in _video_columns([key]))
        if chunk is None or file is None or start_s is None or not info.get("video_path"):
            continue
        fields = {"video_key": key, "chunk_index": chunk, "file_index": file}
        videos[key] = (fill(store, "video_path", info["video_path"], fields), float(start_s))
    return Listed(
        index=int(row["episode_index"]),
        length=int(row["length"]),
        tasks=tuple(row.get("tasks") or ()),
        table_file=fill(store, "data_path", info["data_path"], numbers),
        videos=videos,
    )


def _read_columns(store: Store, file: str, wanted: Sequence[str] | None) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(store.open(file)) as parquet:
            names = parquet.schema_arrow.names
            table = parquet.read(columns=[n for n in names if wanted is None or n in wanted])
    except (pa.ArrowException, OSError) as error:
        raise Refused(
            store, "truncated_parquet", file, f"not a readable parquet file ({error}); fetch it again"
        ) from error
    return {name: table[name].to_pylist() for name in table.column_names}
