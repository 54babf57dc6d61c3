"""Rows of one episode out of a file of many: only its row groups are read, and they are looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import S3Server
from test_lerobot_read import wrong_frames

from vlarge.contracts import ACTION, STATE
from vlarge.data.check import BrokenFile, Unreachable
from vlarge.data.config import Source
from vlarge.data.fetch import open_store
from vlarge.data.formats.lerobot_tables import read_table_file
from vlarge.data.formats.parquet_file import read_parquet
from vlarge.data.formats.write import LeRobotWriter
from vlarge.data.index import open_dataset

NUM_EPISODES, LENGTH, DIM = 12, 200, 256
BUFFER_BYTES = 1 << 16  # of a remote file that a library reads
GROUP_ROWS = {"one group": None, "an episode": "episode", "ten rows": 10, "one row": 1}


def table_files(root: Path) -> list[Path]:
    return sorted((root / "data").rglob("*.parquet"))


def write_groups(path: Path, table: pa.Table, rows: int | str | None) -> None:
    """The table in row groups of so many rows, or one for each episode."""
    episodes = table["episode_index"].to_numpy()
    parts = [table]
    if rows == "episode":
        rows, parts = None, [table.filter(pa.array(episodes == number)) for number in np.unique(episodes)]
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=rows)


@pytest.mark.parametrize("rows", GROUP_ROWS)
@pytest.mark.parametrize(("version", "images"), [("v3.0", False), ("v3.0", True), ("v2.1", False), ("v2.0", False)])
def test_groups_give_the_rows_of_the_whole_file(
    version: str, images: bool, rows: str, make_datasets: ModuleType, tmp_path: Path
) -> None:
    spec = make_datasets.Spec(
        version, episodes=6, length="8:16", codec="h264", gop=6, fps=10, data_episodes=3, images=images
    )
    make_datasets.make(tmp_path / "set", spec)
    for path in table_files(tmp_path / "set"):
        write_groups(path, pq.read_table(path), GROUP_ROWS[rows])
    dataset = open_dataset(Source(path=str(tmp_path / "set")), str(tmp_path / "index"))
    assert dataset.faults == ()
    assert wrong_frames(dataset, make_datasets) == []
    for episode in reversed(dataset.episodes):
        whole = read_table_file(dataset.store, episode.table_file, (STATE, ACTION))
        expected, found = slice(*whole.rows_of(episode.index)), dataset.read_table(episode)
        assert np.array_equal(found.state_TA, whole.state_RA[expected])
        assert np.array_equal(found.action_TA, whole.action_RA[expected])


def write_set(root: Path, num_episodes: int = NUM_EPISODES) -> Path:
    """A v3.0 dataset without cameras, all in one file, a row group for each episode: about 400 KB."""
    random = np.random.default_rng(0)
    names = [str(i) for i in range(DIM)]
    with LeRobotWriter(root, fps=10, cameras={}, state_names=names, action_names=names, robot_type="none") as writer:
        for _ in range(num_episodes):
            states, actions = random.standard_normal((2, LENGTH, DIM), np.float32)
            writer.add_episode("task", states, actions, {})
        writer.finish()
    return root


def test_only_the_row_groups_of_an_episode_are_read(serve_s3: Callable[[Path], S3Server], tmp_path: Path) -> None:
    (path,) = table_files(write_set(tmp_path / "bucket/set"))
    server = serve_s3(tmp_path)
    dataset = open_dataset(Source(path=server.address("bucket/set")), str(tmp_path / "index"), remote_cache_bytes=0)
    metadata = pq.read_metadata(path)
    footer_bytes = metadata.serialized_size + 8
    group_bytes = metadata.row_group(4).total_byte_size

    def spans_of(episode: int) -> list[tuple[int, int]]:
        server.requests.clear()
        dataset.read_table(dataset.episodes[episode])
        return server.spans()

    assert 0 < num_bytes(spans_of(9)) <= footer_bytes + group_bytes + 4 * BUFFER_BYTES
    another = spans_of(4)
    assert group_bytes / 2 < num_bytes(another) <= group_bytes + 3 * BUFFER_BYTES
    assert max(stop for _, stop in another) <= path.stat().st_size - footer_bytes  # the footer is known
    assert spans_of(9) == []


def num_bytes(spans: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in spans)


def numbered(table: pa.Table, episodes: np.ndarray) -> pa.Table:
    return table.set_column(table.column_names.index("episode_index"), "episode_index", pa.array(episodes))


def with_number(row: int, episode: int) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        episodes = table["episode_index"].to_numpy().copy()
        episodes[row] = episode
        return numbered(table, episodes)

    return change


# What may happen to a file of episodes 0 to 3 after it was indexed, and what is said of episode 2.
CHANGES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "other episodes": (lambda t: numbered(t, t["episode_index"].to_numpy() + 100), "no rows of episode 2, but of 10"),
    "a row less before it": (lambda t: t.slice(1), r"file-000\.parquet: its rows have changed since it was indexed"),
    "a row less of it": (with_number(3 * LENGTH - 1, 3), r"file-000\.parquet: its rows have changed since it was"),
    "a row of another in it": (with_number(2 * LENGTH + 5, 3), "other episodes lie between those of episode 2"),
    "an early end": (lambda t: t.slice(0, 2 * LENGTH), "it has no rows of episode 2, but of"),
    "no rows": (lambda t: t.slice(0, 0), "it has no rows$"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [None, LENGTH, 250])
def test_rows_that_are_not_the_episodes_are_found(change: str, rows: int | None, tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", 4)
    dataset = open_dataset(Source(path=str(root)), str(tmp_path / "index"))
    (path,) = table_files(root)
    alter, message = CHANGES[change]
    pq.write_table(alter(pq.read_table(path)), path, row_group_size=rows)
    with pytest.raises(BrokenFile, match=message):
        dataset.read_table(dataset.episodes[2])


def test_a_file_without_episode_numbers_is_all_of_its_episode(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", 1)
    (path,) = table_files(root)
    table = pq.read_table(path).drop_columns(["episode_index"])
    pq.write_table(table, path, row_group_size=50)
    before, after = (open_dataset(Source(path=str(root)), str(tmp_path / "index")) for _ in range(2))
    states = np.array(table[STATE].to_pylist(), np.float32)
    assert np.array_equal(before.read_table(before.episodes[0]).state_TA, states)
    pq.write_table(pa.concat_tables([table, table.slice(0, 50)]), path, row_group_size=50)
    with pytest.raises(BrokenFile, match="its rows have changed since it was indexed"):
        after.read_table(after.episodes[0])


def test_a_table_that_cannot_be_had_is_no_fault_of_an_episode(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", 2)
    dataset = open_dataset(Source(path=str(root)), str(tmp_path / "index"))
    table_files(root)[0].unlink()
    with pytest.raises(Unreachable, match=r"file-000\.parquet: the file has gone"):
        dataset.read_table(dataset.episodes[1])


def test_want_of_memory_is_not_the_files_fault(make_datasets: ModuleType, tmp_path: Path) -> None:
    make_datasets.make(tmp_path / "set", make_datasets.Spec("v3.0", episodes=1, length="5", codec="h264"))

    def read(parquet: pq.ParquetFile) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    store = open_store(tmp_path / "set")
    with pytest.raises(MemoryError):
        read_parquet(store, str(table_files(tmp_path / "set")[0].relative_to(tmp_path / "set")), read)
