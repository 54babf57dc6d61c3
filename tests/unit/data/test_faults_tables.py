"""Damaged and unusual tables of all kinds: rows, their columns, the tables of episodes and of tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.long  # the rows of FAULTS.md themselves are in test_faults.py

GOOD = [0, 1, 2, 3, 4, 5]
Variant = tuple[str, Callable[[Path, ModuleType], None], list[int] | str, set[str]]
VARIANTS: dict[str, Variant] = {}


def variant(version: str, usable: list[int] | str, *kinds: str) -> Callable[[Any], Any]:
    """Registers a damage: which episodes are left, or "refused", and the kinds of fault that must be named."""

    def register(change: Callable[[Path, ModuleType], None]) -> Callable[[Path, ModuleType], None]:
        VARIANTS[change.__name__] = (version, change, usable, set(kinds))
        return change

    return register


def put(root: Path, number: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Changes one data file as a whole. v3.0: two episodes in each."""
    path = sorted((root / "data").rglob("*.parquet"))[number]
    pq.write_table(change(pq.read_table(path)), path)


def column(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.column_names.index(name), name, values(t) if callable(values) else values)


def masked(name: str, episode: int, frames: list[int], value: float) -> Callable[[pa.Table], pa.Table]:
    """Sets the first number of these rows to a value."""

    def change(t: pa.Table) -> pa.Table:
        rows = np.array(t[name].to_pylist(), np.float32)
        where = (t["episode_index"].to_numpy() == episode) & np.isin(t["frame_index"].to_numpy(), frames)
        rows[where, 0] = value
        return column(name, pa.array(list(rows), t[name].type))(t)

    return change


def per_row(
    name: str, value: Callable[[int, Any], Any], kind: pa.DataType | None = None
) -> Callable[[pa.Table], pa.Table]:
    return lambda t: column(name, pa.array([value(i, v) for i, v in enumerate(t[name].to_pylist())], kind))(t)


def edit_row(root: Path, episode: int, **values: Any) -> None:
    """Changes cells of an episode in meta/episodes; a column takes the type that its new values have."""
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        numbers = table["episode_index"].to_pylist()
        for name, new in values.items():
            name = name.replace("__", "/")
            cells = [new if n == episode else v for n, v in zip(numbers, table[name].to_pylist(), strict=True)]
            if episode in numbers:
                table = column(name, pa.array(cells))(table)
        pq.write_table(table, path)


def edit_line(root: Path, number: int, **values: Any) -> None:
    path = root / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | values)
    path.write_text("\n".join(lines) + "\n")


# What is not a number.


@variant("v3.0", GOOD, "nan_states")
def nan_only_in_state(root: Path, damage: ModuleType) -> None:
    put(root, 1, masked("observation.state", 3, [2], np.nan))


@variant("v3.0", GOOD, "nan_actions")
def infinity_in_the_last_row(root: Path, damage: ModuleType) -> None:
    put(root, 2, masked("action", 5, [7], -np.inf))


@variant("v3.0", [0, 1, 2, 3, 5], "nan_actions")
def nan_in_every_row(root: Path, damage: ModuleType) -> None:
    put(root, 2, masked("action", 4, list(range(10)), np.nan))


@variant("v3.0", GOOD, "nan_states", "nan_actions")
def nan_in_both(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: masked("action", 0, [3], np.nan)(masked("observation.state", 0, [9], np.inf)(t)))


@variant("v3.0", GOOD, "nan_actions")
def a_null_among_the_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: [None, *v[1:]] if i == 4 else v, pa.list_(pa.float32())))


@variant("v3.0", GOOD, "nan_actions")
def a_row_of_actions_that_is_null(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: None if i == 4 else v, pa.list_(pa.float32())))


@variant("v3.0", GOOD, "nan_actions")
def too_large_for_float32(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: [1e300, *v[1:]] if i == 4 else v, pa.list_(pa.float64())))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def text_for_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: "open gripper", pa.string()))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def digits_for_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: [str(x) for x in v], pa.list_(pa.string())))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def structs_for_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: {"x": v[0]}))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def times_for_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: i, pa.timestamp("ns")))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def actions_of_varying_length(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: v[: 6 + i % 2], pa.list_(pa.float32())))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def actions_that_are_all_null(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: None, pa.list_(pa.float32())))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def a_column_of_no_type(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: column("action", pa.nulls(len(t)))(t))


@variant("v3.0", GOOD, "nan_actions")
def one_row_without_action(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: None if i == 3 else v, pa.list_(pa.float32(), 7)))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def empty_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: [], pa.list_(pa.float32())))


@variant("v3.0", [0, 1, 4, 5], "shape_mismatch")
def one_file_has_fewer_actions(root: Path, damage: ModuleType) -> None:
    put(root, 1, per_row("action", lambda i, v: v[:5], pa.list_(pa.float32())))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def the_first_file_has_fewer_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("action", lambda i, v: v[:5], pa.list_(pa.float32())))


# Rows.


@variant("v3.0", [2, 3, 4, 5], "empty_parquet")
def no_row(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.slice(0, 0))


@variant("v3.0", [2, 3, 4, 5], "empty_parquet")
def no_row_group(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "data").rglob("*.parquet"))[0]
    schema = pq.read_schema(path)
    pq.ParquetWriter(path, schema).close()


@variant("v3.0", [2, 3, 4, 5], "truncated_parquet")
def a_file_of_no_bytes(root: Path, damage: ModuleType) -> None:
    sorted((root / "data").rglob("*.parquet"))[0].write_bytes(b"")


@variant("v3.0", [2, 3, 4, 5], "truncated_parquet")
def text_for_a_table(root: Path, damage: ModuleType) -> None:
    sorted((root / "data").rglob("*.parquet"))[0].write_text("version https://git-lfs.github.com/spec/v1\n" * 9)


@variant("v3.0", [2, 3, 4, 5], "truncated_parquet")
def zeros_in_the_middle(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "data").rglob("*.parquet"))[0]
    data = bytearray(path.read_bytes())
    data[100:-3000] = bytes(len(data) - 3100)
    path.write_bytes(data)


@variant("v3.0", [2, 3, 4, 5], "missing_parquet")
def a_folder_for_a_table(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "data").rglob("*.parquet"))[0]
    path.unlink()
    path.mkdir()


@variant("v3.0", [2, 3, 4, 5], "missing_parquet")
def a_pipe_for_a_table(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "data").rglob("*.parquet"))[0]
    path.unlink()
    os.mkfifo(path)


@variant("v3.0", [2, 3, 4, 5], "missing_frame")
def rows_out_of_order(root: Path, damage: ModuleType) -> None:
    def shuffle(t: pa.Table) -> pa.Table:
        rows = np.arange(len(t))
        rows[2:5], rows[20:22] = [4, 2, 3], [21, 20]
        return t.take(rows)

    put(root, 0, shuffle)


@variant("v3.0", [2, 3, 4, 5], "scattered_rows")
def episodes_mixed_up(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.take(np.random.default_rng(0).permutation(len(t))))


@variant("v3.0", [0, 2, 3, 4, 5], "missing_frame")
def a_frame_twice(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("frame_index", lambda i, v: 3 if i == 15 + 4 else v))


@variant("v3.0", [0, 2, 3, 4, 5], "missing_frame")
def a_row_twice(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.take([*range(20), 19, *range(20, len(t))]))


@variant("v3.0", [0, 3, 4, 5], "missing_frame")
def rows_over_two_files(root: Path, damage: ModuleType) -> None:
    first = pq.read_table(sorted((root / "data").rglob("*.parquet"))[0])
    put(root, 0, lambda t: t.slice(0, 20))
    put(root, 1, lambda t: pa.concat_tables([first.slice(20), t.slice(1)]))


@variant("v3.0", [0, 2, 3, 4, 5], "missing_frame")
def the_last_row_is_missing(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.slice(0, len(t) - 1))


@variant("v3.0", [1, 2, 3, 4, 5], "missing_frame")
def the_first_row_is_missing(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.slice(1))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def a_frame_index_that_is_null(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("frame_index", lambda i, v: None if i == 2 else v, pa.int64()))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def frame_indices_in_words(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("frame_index", lambda i, v: f"frame {v}", pa.string()))


@variant("v3.0", GOOD)
def whole_numbers_as_floats(root: Path, damage: ModuleType) -> None:
    for name in ("frame_index", "episode_index", "task_index"):
        put(root, 0, per_row(name, lambda i, v: float(v), pa.float32()))


@variant("v3.0", GOOD)
def whole_numbers_as_half_floats(root: Path, damage: ModuleType) -> None:
    for name in ("frame_index", "episode_index", "task_index"):
        put(root, 0, lambda t, name=name: column(name, pa.array(t[name].to_numpy().astype(np.float16)))(t))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def endless_frame_indices(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("frame_index", lambda i, v: float("inf"), pa.float32()))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def two_columns_of_actions(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.append_column("action", t["action"]))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def two_columns_of_episode_numbers(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.append_column("episode_index", t["episode_index"]))


@variant("v3.0", [2, 3, 4, 5], "shape_mismatch")
def maps_for_actions(root: Path, damage: ModuleType) -> None:
    kind = pa.map_(pa.string(), pa.float32())
    put(root, 0, per_row("action", lambda i, v: {f"joint {n}": x for n, x in enumerate(v)}, kind))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def halves_of_episodes(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("episode_index", lambda i, v: v + 0.5, pa.float32()))


@variant("v3.0", GOOD)
def small_unsigned_numbers(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("episode_index", lambda i, v: v, pa.uint8()))


@variant("v3.0", [2, 3, 4, 5], "bad_column")
def lists_of_frame_indices(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("frame_index", lambda i, v: [v, v], pa.list_(pa.int64())))


@variant("v3.0", GOOD)
def dictionary_columns(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: column("task_index", pc.dictionary_encode(t["task_index"]))(t))


@variant("v2.1", GOOD)
def no_episode_column(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.drop_columns(["episode_index"]))


@variant("v3.0", [2, 3, 4, 5], "missing_column")
def no_episode_column_in_a_file_of_two(root: Path, damage: ModuleType) -> None:
    put(root, 0, lambda t: t.drop_columns(["episode_index"]))


@variant("v3.0", GOOD, "jittered_timestamps")
def times_that_are_no_numbers(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("timestamp", lambda i, v: float("nan"), pa.float32()))


@variant("v3.0", GOOD, "jittered_timestamps")
def times_without_end(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("timestamp", lambda i, v: float("inf"), pa.float32()))


@variant("v3.0", GOOD, "jittered_timestamps")
def times_in_words(root: Path, damage: ModuleType) -> None:
    put(root, 0, per_row("timestamp", lambda i, v: "noon", pa.string()))


@variant("v2.1", [0, 1, 4, 5], "wrong_data_file_index")
def tables_of_two_episodes_swapped(root: Path, damage: ModuleType) -> None:
    one, other = (root / f"data/chunk-000/episode_{i:06d}.parquet" for i in (2, 3))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


@variant("v3.0", [4, 5], "wrong_data_file_index")
def tables_swapped(root: Path, damage: ModuleType) -> None:
    one, other = sorted((root / "data").rglob("*.parquet"))[:2]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


# Tasks.


def write_tasks(root: Path, rows: list[tuple[int, str]], damage: ModuleType) -> None:
    damage.md.write_tasks_parquet(root / "meta/tasks.parquet", rows)


@variant("v3.0", GOOD)
def tasks_in_another_order(root: Path, damage: ModuleType) -> None:
    write_tasks(root, [(i, damage.md.task_text(i)) for i in (2, 0, 1)], damage)


@variant("v3.0", [0, 1, 2, 3, 5], "missing_tasks", "unknown_task")
def no_tasks_file(root: Path, damage: ModuleType) -> None:
    (root / "meta/tasks.parquet").unlink()


@variant("v2.1", [0, 1, 2, 3, 5], "missing_tasks", "unknown_task")
def no_task_lines(root: Path, damage: ModuleType) -> None:
    (root / "meta/tasks.jsonl").unlink()


@variant("v3.0", GOOD, "unknown_task")
def a_task_without_text(root: Path, damage: ModuleType) -> None:
    """Only episode 4 has two tasks, 1 and 2."""
    write_tasks(root, [(i, damage.md.task_text(i)) for i in (1, 2)], damage)


@variant("v3.0", [0, 1, 2, 3, 5], "unknown_task")
def a_task_of_two_without_text(root: Path, damage: ModuleType) -> None:
    write_tasks(root, [(i, damage.md.task_text(i)) for i in (0, 1)], damage)


@variant("v3.0", [0, 1, 2, 3, 5], "duplicate_task", "unknown_task")
def two_texts_for_a_task(root: Path, damage: ModuleType) -> None:
    write_tasks(root, [*((i, damage.md.task_text(i)) for i in range(3)), (1, "wave")], damage)


@variant("v3.0", [0, 1, 2, 3, 5], "bad_tasks", "unknown_task")
def task_numbers_in_words(root: Path, damage: ModuleType) -> None:
    pq.write_table(
        pa.table({"task_index": ["zero", "one", "two"], "task": ["a", "b", "c"]}), root / "meta/tasks.parquet"
    )


@variant("v3.0", [0, 1, 2, 3, 5], "bad_tasks", "unknown_task")
def task_texts_null(root: Path, damage: ModuleType) -> None:
    pq.write_table(pa.table({"task_index": [0, 1, 2], "task": pa.nulls(3, pa.string())}), root / "meta/tasks.parquet")


@variant("v3.0", [0, 1, 2, 3, 5], "bad_tasks", "unknown_task")
def tasks_that_are_no_table(root: Path, damage: ModuleType) -> None:
    (root / "meta/tasks.parquet").write_text("pick up the block")


@variant("v3.0", [0, 1, 2, 3, 5], "bad_tasks", "unknown_task")
def task_texts_that_are_no_text(root: Path, damage: ModuleType) -> None:
    text = pa.array([b"\xff\xfe", b"\xff", b"\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"task_index": [0, 1, 2], "task": text}), root / "meta/tasks.parquet")


@variant("v3.0", [0, 1, 2, 3, 5], "bad_tasks", "unknown_task")
def two_columns_of_task_texts(root: Path, damage: ModuleType) -> None:
    table = pa.table({"task_index": [0, 1, 2], "task": [damage.md.task_text(i) for i in range(3)]})
    pq.write_table(table.append_column("task", table["task"]), root / "meta/tasks.parquet")


@variant("v3.0", [0, 1, 2, 3, 5], "missing_tasks", "unknown_task")
def a_pipe_for_tasks(root: Path, damage: ModuleType) -> None:
    (root / "meta/tasks.parquet").unlink()
    os.mkfifo(root / "meta/tasks.parquet")


@variant("v2.1", [0, 1, 2, 3, 5], "bad_tasks", "unknown_task")
def task_lines_of_any_kind(root: Path, damage: ModuleType) -> None:
    (root / "meta/tasks.jsonl").write_text('3\n{"task_index": "1", "task": "a"}\n{"task_index": 2}\n')


# The table of episodes.


@variant("v3.0", "refused", "bad_episodes_file")
def two_columns_of_lengths(root: Path, damage: ModuleType) -> None:
    for path in (root / "meta/episodes").rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column("length", table["length"]), path)


@variant("v3.0", "refused", "duplicate_episode")
def an_episode_listed_twice(root: Path, damage: ModuleType) -> None:
    edit_row(root, 2, episode_index=1)


@variant("v3.0", [0, 1, 3, 4, 5], "wrong_data_file_index", "unlisted_episode")
def a_negative_episode(root: Path, damage: ModuleType) -> None:
    edit_row(root, 2, episode_index=-2)


@variant("v3.0", GOOD)
def episodes_listed_backwards(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        pq.write_table(table.take(np.arange(len(table))[::-1]), path)


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_totals", "unlisted_episode")
def an_episode_not_listed(root: Path, damage: ModuleType) -> None:
    damage.edit_episodes(root, lambda row: None if row["episode_index"] == 1 else row)


@variant("v3.0", [0, 1, 3, 4, 5], "unlisted_episode")
def the_last_of_a_file_not_listed(root: Path, damage: ModuleType) -> None:
    damage.edit_episodes(root, lambda row: None if row["episode_index"] == 2 else row)
    damage.info(root, total_episodes=5)


@variant("v3.0", [0, 1, 2], "wrong_totals", "unlisted_file")
def a_file_of_episodes_missing(root: Path, damage: ModuleType) -> None:
    sorted((root / "meta/episodes").rglob("*.parquet"))[1].unlink()


@variant("v2.1", [0, 1, 3, 4, 5], "unlisted_file")
def a_line_missing(root: Path, damage: ModuleType) -> None:
    path = root / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2] + lines[3:]))
    damage.info(root, total_episodes=5)


@variant("v3.0", [0, 1, 3, 4, 5], "wrong_data_file_index")
def a_huge_episode_number(root: Path, damage: ModuleType) -> None:
    edit_row(root, 2, episode_index=2**62)


@variant("v3.0", GOOD)
def episode_numbers_as_floats(root: Path, damage: ModuleType) -> None:
    for name in ("episode_index", "length", "data__file_index", f"videos__{damage.TOP}__file_index"):
        for episode in (0, 4):
            value = damage.episodes(root)[episode][name.replace("__", "/")]
            edit_row(root, episode, **{name: float(value)})


@variant("v3.0", "refused", "bad_episode")
def an_episode_number_and_a_half(root: Path, damage: ModuleType) -> None:
    for episode in (0, 1, 2):
        edit_row(root, episode, episode_index=episode + 0.5)


@variant("v3.0", "refused", "bad_episode")
def episode_numbers_in_words(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        pq.write_table(column("episode_index", pa.array(["one"] * len(table)))(table), path)


@variant("v3.0", "refused", "bad_episode")
def an_episode_number_that_is_null(root: Path, damage: ModuleType) -> None:
    edit_row(root, 2, episode_index=None)


@variant("v3.0", [0, 2, 3, 4, 5], "bad_length")
def a_negative_length(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, length=-13)


@variant("v3.0", [0, 2, 3, 4, 5], "bad_length")
def no_length(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, length=None)


@variant("v3.0", [0, 2, 3, 4, 5], "bad_length")
def a_length_of_zero_with_rows(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, length=0)


@variant("v3.0", [3, 4, 5], "bad_length")
def lengths_in_words(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "meta/episodes").rglob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(column("length", pa.array(["long"] * len(table)))(table), path)


@variant("v3.0", [0, 2, 3, 4, 5], "missing_frame")
def a_length_too_long(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, length=16)


@variant("v3.0", [0, 2, 3, 4, 5], "missing_frame")
def a_length_too_short(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, length=12)


@variant("v3.0", [0, 2, 3, 4, 5], "missing_frame")
def a_huge_length(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, length=2**62)


@variant("v3.0", [0, 2, 3, 4, 5], "missing_parquet")
def no_pointer_to_rows(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, data__file_index=None)


@variant("v3.0", [0, 2, 3, 4, 5], "missing_parquet")
def a_negative_pointer(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, data__file_index=-1)


@variant("v3.0", [3, 4, 5], "missing_parquet")
def pointers_in_words(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "meta/episodes").rglob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(column("data/file_index", pa.array(["../../etc/passwd"] * len(table)))(table), path)


@variant("v3.0", "refused", "missing_column")
def no_length_column(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        pq.write_table(pq.read_table(path).drop_columns(["length"]), path)


@variant("v3.0", GOOD)
def no_task_lists(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        pq.write_table(pq.read_table(path).drop_columns(["tasks"]), path)


@variant("v3.0", GOOD)
def task_lists_of_another_kind(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        pq.write_table(column("tasks", pa.array([7] * len(table)))(table), path)


@variant("v3.0", GOOD, "task_mismatch")
def task_lists_that_say_other_tasks(root: Path, damage: ModuleType) -> None:
    edit_row(root, 1, tasks=["dance"])


@variant("v3.0", [0, 1, 2, 3, 4, 5], "phantom_camera")
def no_pointers_of_one_camera(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        pq.write_table(
            table.drop_columns([n for n in table.column_names if n.startswith(f"videos/{damage.TOP}")]), path
        )


@variant("v3.0", [3, 4, 5], "missing_mp4")
def no_pointers_of_one_camera_in_one_file(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "meta/episodes").rglob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(table.drop_columns([n for n in table.column_names if n.startswith(f"videos/{damage.TOP}")]), path)


@variant("v3.0", [0, 1, 2], "bad_episodes_file")
def one_file_of_episodes_damaged(root: Path, damage: ModuleType) -> None:
    sorted((root / "meta/episodes").rglob("*.parquet"))[1].write_bytes(b"PAR1")


@variant("v3.0", [0, 1, 2], "wrong_totals", "unlisted_episode", "unlisted_file")
def a_pipe_for_episodes(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "meta/episodes").rglob("*.parquet"))[1]
    path.unlink()
    os.mkfifo(path)


@variant("v3.0", [0, 1, 2], "wrong_totals", "unlisted_episode", "unlisted_file")
def a_folder_for_episodes(root: Path, damage: ModuleType) -> None:
    path = sorted((root / "meta/episodes").rglob("*.parquet"))[1]
    path.unlink()
    path.mkdir()


@variant("v3.0", "refused", "missing_metadata")
def no_table_of_episodes(root: Path, damage: ModuleType) -> None:
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        path.unlink()


@variant("v3.0", GOOD, "wrong_totals")
def totals_that_are_wrong(root: Path, damage: ModuleType) -> None:
    damage.info(root, total_episodes=99, total_frames=1)


# Lines of v2.


@variant("v2.1", GOOD)
def blank_lines_and_a_byte_order_mark(root: Path, damage: ModuleType) -> None:
    for name in ("episodes.jsonl", "tasks.jsonl", "info.json"):
        path = root / "meta" / name
        text = path.read_text() if name.endswith("json") else "\n\n" + path.read_text().replace("\n", "\r\n\n  \n")
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())


@variant("v2.1", GOOD, "repeated_line")
def a_line_twice(root: Path, damage: ModuleType) -> None:
    path = root / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[1], *lines[2:]]))


@variant("v2.1", "refused", "duplicate_episode")
def two_lines_for_an_episode(root: Path, damage: ModuleType) -> None:
    edit_line(root, 2, episode_index=1)


@variant("v2.1", "refused", "broken_jsonl_line")
def a_number_for_a_line(root: Path, damage: ModuleType) -> None:
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text() + "17\n")


@variant("v2.1", "refused", "broken_jsonl_line")
def an_episode_called_true(root: Path, damage: ModuleType) -> None:
    edit_line(root, 2, episode_index=True)


@variant("v2.1", [0, 1, 3, 4, 5], "bad_length")
def a_length_in_words(root: Path, damage: ModuleType) -> None:
    edit_line(root, 2, length="12")


@variant("v2.1", [0, 1, 3, 4, 5], "bad_length")
def a_length_below_zero(root: Path, damage: ModuleType) -> None:
    edit_line(root, 2, length=-12)


@variant("v2.1", "refused", "broken_jsonl_line")
def an_episode_of_thirty_digits(root: Path, damage: ModuleType) -> None:
    edit_line(root, 2, episode_index=10**30)


@variant("v2.1", GOOD)
def tasks_that_are_no_list(root: Path, damage: ModuleType) -> None:
    edit_line(root, 2, tasks=5)


@variant("v2.1", "refused", "missing_metadata")
def no_lines_of_episodes(root: Path, damage: ModuleType) -> None:
    (root / "meta/episodes.jsonl").unlink()


@variant("v2.1", "refused", "missing_metadata")
def a_pipe_for_lines(root: Path, damage: ModuleType) -> None:
    (root / "meta/episodes.jsonl").unlink()
    os.mkfifo(root / "meta/episodes.jsonl")


@variant("v2.1", "refused", "unreadable_metadata")
def lines_that_are_no_text(root: Path, damage: ModuleType) -> None:
    (root / "meta/episodes.jsonl").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_damaged_table_costs_only_its_episodes(
    name: str, damage: ModuleType, good_copy: Callable[[str], Path], outcome: Callable[[Path], Any]
) -> None:
    version, change, expected, kinds = VARIANTS[name]
    root = good_copy(version)
    change(root, damage)
    usable, faults = outcome(root)
    assert (usable, kinds - {kind for kind, _, _ in faults}) == (expected, set()), faults
    assert bool(faults) == bool(kinds)
