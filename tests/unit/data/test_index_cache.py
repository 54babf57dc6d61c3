"""Indexes that are kept: used while nothing changes, rebuilt when something does, whatever happened to a builder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from vlarge.data import fetch, index_cache
from vlarge.data.arrow_numbers import as_numpy
from vlarge.data.check import Unreachable
from vlarge.data.config import Source
from vlarge.data.formats import lerobot
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.manifest_file import in_columns

TOP = "observation.images.top"


@pytest.fixture(scope="module")
def good(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "set"
    spec = make_datasets.Spec("v2.1", episodes=5, length="8:12", size="48x64", codec="h264", fps=10)
    make_datasets.make(path, spec)
    return path


@pytest.fixture
def root(good: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(good, tmp_path / "set"))


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files of which content is read."""
    files: list[str] = []
    for name in ("read", "open"):
        original = getattr(fetch.LocalStore, name)

        def noting(store: fetch.Store, file: str, *rest: int, original: object = original) -> object:
            files.append(file)
            return original(store, file, *rest)  # type: ignore[operator]

        monkeypatch.setattr(fetch.LocalStore, name, noting)
    return files


def opened(root: Path, index_dir: Path, **settings: object) -> Dataset:
    return open_dataset(Source(path=str(root), **settings), str(index_dir))  # type: ignore[arg-type]


def kept(index_dir: Path) -> list[Path]:
    return sorted(p for p in index_dir.iterdir() if p.is_dir() and not p.name.startswith("."))


def identities(dataset: Dataset, make_datasets: ModuleType) -> list[tuple[int, int, int]]:
    return [
        make_datasets.decode_identity(image)
        for episode in dataset.episodes
        for image in dataset.read_frames(episode, TOP, range(episode.length))
    ]


def test_nothing_is_read_again_when_nothing_changed(
    root: Path, index_dir: Path, touched: list[str], make_datasets: ModuleType
) -> None:
    first = opened(root, index_dir)
    assert len(set(touched)) >= 3 + 5 * 3  # info, episodes, tasks; a parquet and two mp4 per episode
    touched.clear()
    second = opened(root, index_dir)
    assert touched == []
    assert second.revision == first.revision
    assert second.episodes == first.episodes
    assert (second.tasks, second.faults, second.cameras) == (first.tasks, first.faults, first.cameras)
    assert len(kept(index_dir)) == 1
    assert identities(second, make_datasets) == [(0, e.index, i) for e in first.episodes for i in range(e.length)]


def test_the_manifest_is_the_same_in_columns(root: Path) -> None:
    store, source = fetch.open_store(root), Source(path=str(root))
    (root / "meta/episodes.jsonl").write_text(
        (root / "meta/episodes.jsonl").read_text() + '{"episode_index": 9, "tasks": ["fly"], "length": 3}\n'
    )
    plain = lerobot.index(store, source)
    columns = in_columns(plain, store)
    assert isinstance(plain.episodes, tuple)
    assert not isinstance(columns.episodes, tuple)
    for name in ("episodes", "faults", "cameras", "features", "fps", "format", "task_texts", "metadata_files"):
        assert getattr(columns, name) == getattr(plain, name), name
    assert columns.faults
    assert columns.episodes[1:3] == plain.episodes[1:3]
    assert columns.episodes[-1] == plain.episodes[-1]
    assert columns.episodes != plain.episodes[:-1]
    with pytest.raises(IndexError):
        columns.episodes[5]
    assert columns.lengths.tolist() == plain.lengths.tolist() == [e.length for e in plain.episodes]
    assert columns.used_tasks == plain.used_tasks
    assert list(columns.video_files) == sorted(plain.video_files)
    assert "videos/none.mp4" not in columns.video_files
    for file, video in plain.video_files.items():
        mapped = columns.video_files[file]
        for name in ("offset_P", "size_P", "pts_P", "is_key_P", "frame_packets_F"):
            assert np.array_equal(getattr(mapped, name), getattr(video, name)), name
        for name in ("codec", "extradata", "height", "width", "time_base", "file_bytes", "path"):
            assert getattr(mapped, name) == getattr(video, name), name


def test_a_changed_file_rebuilds_and_replaces(root: Path, index_dir: Path) -> None:
    assert len(opened(root, index_dir).episodes) == 5
    before = kept(index_dir)
    next((root / "data").rglob("*1.parquet")).unlink()
    assert [e.index for e in opened(root, index_dir).episodes] == [0, 2, 3, 4]
    assert len(kept(index_dir)) == 1
    assert kept(index_dir) != before


def test_a_file_of_the_same_size_with_another_time_is_looked_at(
    root: Path, index_dir: Path, touched: list[str]
) -> None:
    opened(root, index_dir)
    os.utime(next((root / "data").rglob("*2.parquet")))
    touched.clear()
    opened(root, index_dir)
    assert touched


def test_other_settings_have_their_own_index(root: Path, index_dir: Path, tmp_path: Path, touched: list[str]) -> None:
    listed = json.dumps({"revision": opened(root, index_dir).revision, "episodes": {}})
    (tmp_path / "quarantine.json").write_text(listed)
    for settings in (
        {},
        {"exclude_episodes": (1,)},
        {"cameras": (TOP,)},
        {"quarantine": str(tmp_path / "quarantine.json")},
    ):
        assert 1 in [e.index for e in opened(root, index_dir, **settings).episodes] or "exclude_episodes" in settings
    assert len(kept(index_dir)) == 4
    touched.clear()
    assert len(opened(root, index_dir, exclude_episodes=(1,)).episodes) == 4
    assert touched == []
    (tmp_path / "quarantine.json").write_text(listed + " ")
    opened(root, index_dir, quarantine=str(tmp_path / "quarantine.json"))
    assert touched


def test_of_one_dataset_those_used_last_are_kept(
    root: Path, good: Path, index_dir: Path, monkeypatch: pytest.MonkeyPatch, touched: list[str]
) -> None:
    monkeypatch.setattr(index_cache, "MAX_KEPT", 2)
    opened(good, index_dir)
    mapped = []
    for number in (1, 2, 3):
        for entry in kept(index_dir):
            os.utime(entry, (entry.stat().st_mtime - 60,) * 2)
        opened(root, index_dir)
        mapped.append(opened(root, index_dir, exclude_episodes=(number,)))
    assert len(kept(index_dir)) == 2 + 1
    assert len(list(index_dir.glob(".*.lock"))) == 2 + 1
    touched.clear()
    for dataset, settings in ((root, {}), (root, {"exclude_episodes": (3,)}), (good, {})):
        opened(dataset, index_dir, **settings)
    assert touched == []
    assert [e.index for e in mapped[0].episodes] == [0, 2, 3, 4]  # its files have gone


def test_an_index_that_another_process_builds_is_not_evicted(
    root: Path, index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "MAX_KEPT", 1)
    opened(root, index_dir)
    lock = os.open(next(index_dir.glob(".*.lock")), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    opened(root, index_dir, exclude_episodes=(1,))
    assert len(kept(index_dir)) == len(list(index_dir.glob(".*.lock"))) == 2
    os.close(lock)
    opened(root, index_dir, exclude_episodes=(2,))
    assert len(kept(index_dir)) == len(list(index_dir.glob(".*.lock"))) == 1


def test_a_lock_that_went_while_it_was_waited_for_holds_nobody_off(
    root: Path, index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evicted(descriptor: int, kind: int) -> None:
        next(index_dir.glob(".*.lock")).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", evicted)
        assert len(opened(root, index_dir).episodes) == 5
    assert kept(index_dir) == []
    opened(root, index_dir)
    assert len(kept(index_dir)) == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "head", "version", "gone", "empty folder"])
def test_a_damaged_index_is_rebuilt(damage: str, root: Path, index_dir: Path) -> None:
    first = opened(root, index_dir)
    entry = kept(index_dir)[0]
    table, head = entry / "episodes.arrow", entry / "manifest.json"
    data = table.read_bytes()
    if damage == "cut":
        (entry / "packets.arrow").write_bytes((entry / "packets.arrow").read_bytes()[:-100])
    elif damage == "flip":
        table.unlink()
        table.write_bytes(data[:400] + bytes([data[400] ^ 1]) + data[401:])
    elif damage == "head":
        head.write_text(head.read_text()[:50])
    elif damage == "version":
        head.write_text(json.dumps(json.loads(head.read_text()) | {"version": 0}))
    elif damage == "gone":
        table.unlink()
    else:
        shutil.rmtree(entry)
        entry.mkdir()
    assert opened(root, index_dir).episodes == first.episodes
    assert json.loads(head.read_text())["version"]
    assert table.read_bytes() == data


@pytest.mark.parametrize(("name", "column"), [("packets", "pts"), ("packets", "is_key"), ("frames", "packet")])
def test_a_flipped_bit_in_a_video_table_shows_no_other_frame(
    name: str, column: str, root: Path, index_dir: Path
) -> None:
    first = opened(root, index_dir)
    key = first.camera_keys[0]
    episode = min(first.episodes, key=lambda e: e.videos[key].file)  # files stand in the tables by name
    table = kept(index_dir)[0] / f"{name}.arrow"
    with pa.memory_map(str(table)) as source:
        whole = source.read_buffer()
        source.seek(0)
        values = pa.ipc.open_file(source).read_all()[column].chunks[0]
        at = values.buffers()[1].address - whole.address + 2 * values.type.bit_width // 8
        data = bytearray(whole)
    table.unlink()  # the first dataset maps it still
    data[at] ^= 1
    table.write_bytes(data)
    again = opened(root, index_dir)
    with pytest.raises(Unreachable, match="index keeps of it has changed on the disk; remove"):
        list(again.iter_frames(episode, key, [2]))


def test_an_index_dir_that_cannot_be_written_costs_only_the_reuse(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, make_datasets: ModuleType
) -> None:
    (tmp_path / "file").write_text("in the way")
    dataset = opened(root, tmp_path / "file/index")
    assert len(identities(dataset, make_datasets)) == dataset.num_frames
    assert [record.getMessage() for record in caplog.records] == [
        f"indexes are not kept, {tmp_path / 'file/index'} cannot be written: Not a directory"
    ]


def test_a_full_disk_costs_only_the_reuse(
    root: Path, index_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_cache, "write_manifest", full)
    assert len(opened(root, index_dir).episodes) == 5
    assert "is not kept" in caplog.text
    assert kept(index_dir) == []


def test_progress_counts_files(root: Path, index_dir: Path) -> None:
    told: list[tuple[int, int]] = []
    open_dataset(Source(path=str(root)), str(index_dir), lambda done, total: told.append((done, total)))
    assert told == [(n, 15) for n in range(1, 16)]
    told.clear()
    open_dataset(Source(path=str(root)), str(index_dir), lambda done, total: told.append((done, total)))
    assert told == []


SCRIPT = """
import sys, time, pathlib
from vlarge.data import index, index_cache
from vlarge.data.config import Source
root, index_dir, pause_s = sys.argv[1:]
real = index_cache.write_manifest
def slow(manifest, folder):
    real(manifest, folder)
    print("writing", flush=True)
    time.sleep(float(pause_s))
index_cache.write_manifest = slow
dataset = index.open_dataset(Source(path=root), index_dir)
print(dataset.revision, len(dataset.episodes), flush=True)
"""


def start(root: Path, index_dir: Path, pause_s: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SCRIPT, str(root), str(index_dir), str(pause_s)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_killed_builder_leaves_nothing_that_breaks_the_next(root: Path, index_dir: Path) -> None:
    builder = start(root, index_dir, 60)
    assert builder.stdout is not None
    assert builder.stdout.readline() == "writing\n"
    assert list(index_dir.glob(".*.partial"))
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    begin_s = time.monotonic()
    assert len(opened(root, index_dir).episodes) == 5
    assert time.monotonic() - begin_s < 10
    assert len(kept(index_dir)) == 1
    assert not list(index_dir.glob(".*.partial"))


def test_processes_that_come_together_build_once(root: Path, index_dir: Path) -> None:
    builders = [start(root, index_dir, 0.3) for _ in range(2)]
    answers = [builder.communicate(timeout=60)[0].splitlines() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert len({lines[-1] for lines in answers}) == 1
    assert sum("writing" in lines for lines in answers) == 1


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "float", "double", "halffloat", "bool"])
def test_arrow_numbers_become_numpy_whatever_the_slice(kind: str) -> None:
    import pyarrow as pa

    numbers = pa.array([0, 1, 1, 0, 1], pa.int8()).cast(kind if kind != "halffloat" else pa.float16())
    for array in (numbers, numbers.slice(2), numbers.slice(1, 3), numbers.slice(5)):
        assert as_numpy(array).tolist() == array.to_pylist()
    assert np.isnan(as_numpy(pa.array([1.5, None]))).tolist() == [False, True]


def test_a_kept_index_opens_without_pandas(root: Path, index_dir: Path) -> None:
    opened(root, index_dir)
    script = """
import sys
from vlarge.data.config import Source
from vlarge.data.index import open_dataset
dataset = open_dataset(Source(path=sys.argv[1]), sys.argv[2])
dataset.read_table(dataset.episodes[0])
dataset.read_frames(dataset.episodes[0], dataset.camera_keys[0], [0])
assert "pandas" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", script, str(root), str(index_dir)]).returncode == 0
