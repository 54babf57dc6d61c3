"""Files by name and byte range, wherever they lie; blocks of remote ones on local disk."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from vlarge.data import blocks, fetch
from vlarge.data.blocks import BlockCache
from vlarge.data.check import Unreachable
from vlarge.data.fetch import Patience, Store, is_address, open_store, printable_address, read_ahead

BLOCK = 1000
QUICK = Patience(deadline_s=0.3, first_pause_s=0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in {"a/one.bin": 2500, "a/b/two.bin": 1, "three.bin": 0, ".git/config": 5, "a/.part": 3}.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(bytes(i % 251 for i in range(size)))
    return tmp_path / "set"


@pytest.fixture(params=["local", "remote", "remote with blocks"])
def store(request: pytest.FixtureRequest, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    if request.param == "local":
        return open_store(folder, QUICK)
    import fsspec

    name = f"/fetch-{request.node.name}"
    for path in folder.rglob("*"):
        if path.is_file():
            fsspec.filesystem("memory").pipe_file(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    budget = 10 * BLOCK if "blocks" in request.param else 0
    return open_store(f"memory:/{name}", QUICK, tmp_path / "blocks", budget)


def test_a_store_is_names_sizes_and_ranges(store: Store, folder: Path) -> None:
    data = (folder / "a/one.bin").read_bytes()
    assert [(e.name, e.num_bytes) for e in store.list_files()] == [
        ("a/b/two.bin", 1),
        ("a/one.bin", 2500),
        ("three.bin", 0),
    ]
    assert [e.name for e in store.list_files("a/b")] == ["a/b/two.bin"]
    assert store.list_files("a/nothing") == []
    assert store.exists("a/one.bin")
    assert not store.exists("a")
    assert store.size("a/one.bin") == 2500
    for start, stop in [(0, None), (0, 10), (990, 1010), (500, 2400), (2490, 9000), (3000, 4000), (7, 7)]:
        assert store.read("a/one.bin", start, stop) == data[start:stop], (start, stop)
    assert store.read("three.bin") == b""
    for ask in (store.read, store.size, store.stamp_of):
        with pytest.raises(Unreachable, match=r"a/none\.bin: .*(exist|No such file|has gone)"):
            ask("a/none.bin")


def test_libraries_get_a_path_or_a_file(store: Store, folder: Path) -> None:
    opened, data = store.open("a/one.bin"), (folder / "a/one.bin").read_bytes()
    if isinstance(opened, str):
        assert opened == str(folder / "a/one.bin")
        return
    assert opened.read(100) == data[:100]
    assert opened.seek(-10, io.SEEK_END) == 2490
    assert opened.read() == data[-10:]


def test_links_to_folders_are_followed_but_not_round_in_circles(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/four.bin").write_bytes(b"4")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "a/up").symlink_to(folder)
    assert [e.name for e in open_store(folder).list_files()] == [
        "a/b/two.bin", "a/one.bin", "linked/four.bin", "three.bin",
    ]  # fmt: skip


def test_what_vanishes_while_it_is_listed_is_not_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def slow(path: str) -> AbstractContextManager[list[os.DirEntry[str]]]:
        with scandir(path) as found:
            entries = list(found)
        gone = folder / ("three.bin" if path == str(folder) else "a/b")
        gone.rename(folder.parent / gone.name)
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", slow)
    assert [e.name for e in open_store(folder).list_files()] == ["a/one.bin"]


def test_a_folder_that_may_not_be_read_is_named_where_it_may_hold_what_is_asked_for(public: Path, sealed: Any) -> None:
    for name in ("lost+found", "data/one"):
        (public / name).mkdir(parents=True)
        (public / name / "file").write_bytes(b"x")
    store = open_store(public, QUICK)
    with sealed(public / "lost+found"):
        assert [e.name for e in store.list_files()] == ["data/one/file"]
        assert store.exists("data/one/file")
    with sealed(public / "data/one"):
        for ask in (
            store.list_files,
            store.stamp,
            lambda: store.list_files("data"),
            lambda: store.exists("data/one/file"),
        ):
            with pytest.raises(Unreachable, match=rf"^{public}/data/one.*cannot be read \(PermissionError"):
                ask()
    with sealed(public), pytest.raises(Unreachable, match=rf"^{public}: the folder cannot be read"):
        store.list_files()


def test_the_stamp_changes_with_the_content(folder: Path) -> None:
    before = open_store(folder).list_files()
    os.utime(folder / "three.bin", ns=(1, 1))
    after = open_store(folder).list_files()
    assert [a.name for a, b in zip(before, after, strict=True) if a != b] == ["three.bin"]


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def read() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "read"

    return read


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError(), KeyError("bug"), TypeError("bug")])
def test_what_no_store_can_mend_is_not_tried_again(error: Exception) -> None:
    num_tries = 0

    def read() -> None:
        nonlocal num_tries
        num_tries += 1
        raise error

    with pytest.raises(type(error)):
        QUICK.try_again("a", read)
    assert num_tries == 1


def test_patience_ends() -> None:
    assert QUICK.try_again("x", failing(3, OSError("busy"))) == "read"
    with pytest.raises(Unreachable, match=r"^here/file: still cannot be read after 0 s \(TimeoutError: slow\)"):
        QUICK.try_again("here/file", failing(10**6, TimeoutError("slow\nsecond line")))
    start_s = time.monotonic()
    with pytest.raises(Unreachable, match="cannot be read"):
        Patience(60).try_again("x", failing(1, PermissionError("no")))
    assert time.monotonic() - start_s < 1


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("s3://bucket/x", True),
        ("memory://x", True),
        ("/a/b", False),
        ("file:///a/b", False),
        ("hf://user/name", False),
        ("set:1/x", False),
    ],
)
def test_addresses_are_told_from_paths(path: str, address: bool) -> None:
    assert is_address(path) == address


def test_addresses_are_shown_without_secrets() -> None:
    text = "GET https://me:pass@host/x?X-Amz-Signature=abc failed, see https://host/y"
    assert printable_address(text) == "GET https://host/x failed, see https://host/y"


def test_reading_ahead_keeps_order_errors_and_a_bound() -> None:
    started: list[str] = []

    def read(file: str) -> Content:
        started.append(file)
        if file == "3":
            raise OSError("three")
        return Content(file, 1000)

    files = [str(n) for n in range(40)]
    results = []
    for file, result in read_ahead(read, files, 2):
        assert len(started) <= int(file) + 5
        if file == "3":
            with pytest.raises(OSError, match="three"):
                result()
        else:
            results.append(result().file)
    assert results == [f for f in files if f != "3"]


@dataclass
class Content:
    file: str
    num_bytes: int


@pytest.mark.parametrize(("num_bytes", "most"), [(10, 8), (250, 4), (2000, 1)])
def test_what_is_read_ahead_is_bounded_in_bytes(num_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_WAITING_BYTES", 1000)
    started: list[str] = []

    def read(file: str) -> Content:
        started.append(file)
        return Content(file, num_bytes)

    ahead = []
    for file, result in read_ahead(read, [str(n) for n in range(20)], 4):
        result()
        time.sleep(0.005)  # readers do all they may
        ahead.append(len(started) - int(file) - 1)
    assert max(ahead) == most - 1
    assert ahead[0] == 0


@pytest.mark.parametrize(("cores", "num_readers"), [({5}, 1), ({1, 2, 7}, 3), (range(64), 8)])
def test_a_disk_has_a_reader_for_each_core_that_may_be_used(
    cores: Collection[int], num_readers: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(cores))
    assert open_store(folder).num_readers == num_readers


class Source:
    """Data behind a block cache, and what was fetched of it."""

    def __init__(self, num_bytes: int) -> None:
        self.data = os.urandom(num_bytes)
        self.fetched: list[tuple[int, int]] = []
        self.delay_s = 0.0
        self.lock = threading.Lock()

    def fetch(self, start: int, stop: int) -> bytes:
        with self.lock:
            self.fetched.append((start, stop))
        time.sleep(self.delay_s)
        return self.data[start:stop]

    def read(self, cache: BlockCache, start: int, stop: int, key: str = "key") -> bool:
        """Whether what comes is right."""
        return cache.read(key, len(self.data), start, stop, self.fetch) == self.data[start:stop]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(blocks, "MAX_FETCH_BLOCKS", 8)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_come_once_and_neighbours_together(tmp_path: Path) -> None:
    source, cache = Source(20_500), BlockCache(tmp_path, 100 * BLOCK)
    assert source.read(cache, 2500, 4100)
    assert source.fetched == [(2000, 5000)]
    assert source.read(cache, 1500, 6500)
    assert source.fetched[1:] == [(1000, 2000), (5000, 7000)]
    assert source.read(cache, 0, 20_500)
    assert max(stop - start for start, stop in source.fetched) == 8 * BLOCK
    assert sum(stop - start for start, stop in source.fetched) == 20_500
    assert source.read(BlockCache(tmp_path, 100 * BLOCK), 0, 20_500)  # another process finds them
    assert sum(stop - start for start, stop in source.fetched) == 20_500


@pytest.mark.usefixtures("small_blocks")
def test_what_will_be_read_next_comes_with_what_has_to_be_fetched(tmp_path: Path) -> None:
    source, cache = Source(9500), BlockCache(tmp_path, 1000 * BLOCK)

    def read(start: int, stop: int, ahead_bytes: int) -> list[tuple[int, int]]:
        source.fetched.clear()
        assert cache.read("key", 9500, start, stop, source.fetch, ahead_bytes) == source.data[start:stop]
        return source.fetched

    assert read(100, 200, 2500) == [(0, 3000)]
    assert read(200, 2900, 5000) == []  # nothing has to be fetched
    assert read(2900, 3100, 0) == [(3000, 4000)]
    assert read(6100, 6200, 0) == [(6000, 7000)]
    assert read(3900, 4100, 10**6) == [(4000, 6000), (7000, 9500)]  # up to the end of the file, but what is here


@pytest.mark.usefixtures("small_blocks")
def test_two_threads_fetch_a_block_once(tmp_path: Path) -> None:
    source, cache = Source(8000), BlockCache(tmp_path, 100 * BLOCK)
    source.delay_s = 0.1
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: source.read(cache, 100 * i, 8000 - 100 * i), range(8)))
    assert sum(stop - start for start, stop in source.fetched) == 8000


@pytest.mark.usefixtures("small_blocks")
def test_who_waits_for_a_block_learns_that_it_cannot_come(tmp_path: Path) -> None:
    cache, begun = BlockCache(tmp_path, 100 * BLOCK), threading.Event()

    def fail(start: int, stop: int) -> bytes:
        begun.set()
        time.sleep(0.1)
        raise Unreachable("gone")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.read, "key", 5000, 0, 5000, fail)
        begun.wait()
        second = pool.submit(cache.read, "key", 5000, 0, 5000, fail)
        for future in (first, second):
            with pytest.raises(Unreachable):
                future.result()
    assert Source(5000).read(cache, 0, 5000)  # and another attempt is free


@pytest.mark.usefixtures("small_blocks")
def test_the_budget_holds_and_what_was_used_last_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TOUCH_S", 0.0)
    source, cache = Source(100 * BLOCK), BlockCache(tmp_path, 16 * BLOCK)
    for start in range(0, 100 * BLOCK, BLOCK):
        assert source.read(cache, start, start + BLOCK)
        assert source.read(cache, 0, BLOCK)
        assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= 16 * BLOCK
        time.sleep(0.002)  # so that times of use differ
    assert source.fetched.count((0, BLOCK)) == 1


@pytest.mark.usefixtures("small_blocks")
def test_a_file_without_blocks_has_no_folder(tmp_path: Path) -> None:
    source, cache = Source(2 * BLOCK), BlockCache(tmp_path, 16 * BLOCK)
    for _ in range(2):
        for number in range(40):
            assert cache.read(f"key-{number}", 2 * BLOCK, 0, 2 * BLOCK, source.fetch) == source.data
    assert all(any(folder.iterdir()) for folder in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.usefixtures("small_blocks")
def test_what_is_here_can_be_read_while_the_folder_is_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cache = Source(9000), BlockCache(tmp_path, 16 * BLOCK)
    assert source.read(cache, 0, BLOCK)
    looking, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(cache, "_shrink", lambda target_bytes: looking.set() or go_on.wait())
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(source.read, cache, BLOCK, 9000)
        assert looking.wait(10)
        try:
            assert pool.submit(source.read, cache, 0, BLOCK).result(timeout=10)
        finally:
            go_on.set()
        assert other.result()


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_or_removed_block_comes_again(tmp_path: Path) -> None:
    source, cache = Source(3000), BlockCache(tmp_path, 100 * BLOCK)
    assert source.read(cache, 0, 3000)
    (tmp_path / "key/0").write_bytes(b"short")
    (tmp_path / "key/1").unlink()
    assert source.read(cache, 0, 3000)
    assert len(source.fetched) == 2


@pytest.mark.usefixtures("small_blocks")
def test_what_cannot_be_written_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    source, cache = Source(3000), BlockCache(tmp_path / "file", 100 * BLOCK)
    assert source.read(cache, 0, 3000)
    assert source.read(cache, 100, 200)
    assert source.fetched == [(0, 3000), (100, 200)]
    assert len(caplog.records) == 1


def test_processes_share_a_folder_of_blocks(tmp_path: Path) -> None:
    script = """
import sys, pathlib
from vlarge.data import blocks
blocks.BLOCK_BYTES = 1000
cache = blocks.BlockCache(pathlib.Path(sys.argv[1]), 20_000)
data = bytes(i * i % 251 for i in range(90_000))
for start in range(0, 80_000, 700):
    assert cache.read("key", len(data), start, start + 2500, lambda a, b: data[a:b]) == data[start : start + 2500]
"""
    processes = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert not list(tmp_path.rglob("*.partial"))
