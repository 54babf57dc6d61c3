"""Damaged and hostile meta/info.json, stats.json and folders: one line, no traceback, nothing outside is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlarge.contracts import InputError
from vlarge.data.config import Source
from vlarge.data.index import open_dataset

pytestmark = pytest.mark.long  # the rows of FAULTS.md themselves are in test_faults.py

GOOD = [0, 1, 2, 3, 4, 5]
TOP = "observation.images.top"
REFUSED_INFO: dict[str, dict[str, Any]] = {
    "fps in words": {"fps": "30"},
    "fps zero": {"fps": 0},
    "fps not a number": {"fps": float("nan")},
    "fps infinite": {"fps": float("inf")},
    "fps true": {"fps": True},
    "fps a list": {"fps": [10]},
    "fps negative": {"fps": -10},
    "features a list": {"features": []},
    "features null": {"features": None},
    "a feature a number": {"features": {"action": 3}},
    "a feature without shape": {"features": {"action": {"dtype": "float32"}}},
    "a negative shape": {"features": {"action": {"dtype": "float32", "shape": [-7]}}},
    "a shape of words": {"features": {"action": {"dtype": "float32", "shape": ["7"]}}},
    "a shape of truths": {"features": {"action": {"dtype": "float32", "shape": [True]}}},
    "a dtype a list": {"features": {"action": {"dtype": ["float32"], "shape": [7]}}},
    "no features": {"features": {}},
    "no data path": {"data_path": None},
    "data path a number": {"data_path": 5},
    "video path a list": {"video_path": ["x"]},
    "data path empty": {"data_path": ""},
    "absolute": {"data_path": "/etc/{chunk_index}"},
    "above": {"data_path": "data/../../{file_index:03d}.parquet"},
    "an attribute": {"data_path": "data/{file_index.__class__}.parquet"},
    "an attribute of a position": {"data_path": "{0.__class__}/file-{file_index:03d}.parquet"},
    "a conversion": {"video_path": "videos/{video_key!r}/{file_index:03d}.mp4"},
    "an unknown field": {"video_path": "videos/{secret}/{file_index:03d}.mp4"},
    "an over-long path": {"data_path": "data/" + "x" * 5000 + "/{file_index:03d}.parquet"},
    "an over-long name": {"video_path": "videos/" + "y" * 300 + "/{file_index:03d}.mp4"},
    "a deep path": {"data_path": "d/" * 3000 + "{file_index:03d}.parquet"},
    "no version": {"codebase_version": None},
    "version a list": {"codebase_version": ["v3.0"]},
    "version a table": {"codebase_version": {"v": 3}},
    "a lone surrogate": {"robot_type": "\ud800"},
}
HARMLESS_INFO: dict[str, dict[str, Any]] = {
    "totals in words": {"total_episodes": "six", "total_frames": None},
    "splits a list": {"splits": [0, 6]},
    "splits of numbers": {"splits": {"train": 6}},
    "splits backwards": {"splits": {"train": "6:0"}},
    "chunk size in words": {"chunks_size": "many"},
    "chunk size zero": {"chunks_size": 0},
    "unknown keys": {"storage": {"a": [1]}, "": None},
    "robot a list": {"robot_type": []},
}


@pytest.mark.parametrize("name", REFUSED_INFO)
def test_info_that_cannot_be_used_is_refused(name: str, good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy("v3.0")
    change_info(root, **REFUSED_INFO[name])
    usable, _ = outcome(root)
    assert usable == "refused"


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("name", HARMLESS_INFO)
def test_info_that_is_only_odd_is_read(name: str, version: str, good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy(version)
    change_info(root, **HARMLESS_INFO[name])
    usable, _ = outcome(root)
    assert usable == GOOD


def change_info(root: Path, **changes: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


CONTENT: dict[str, bytes] = {
    "nothing": b"",
    "a number": b"17",
    "a list": b"[]",
    "null": b"null",
    "text": b"hello",
    "no text": b"\xff\xfe\x00\x01",
    "deep": b'{"a":' * 100_000,
    "deep lists": b"[" * 100_000,
    "digits": b'{"fps": ' + b"9" * 10_000 + b"}",
    "two documents": b"{}{}",
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("name", CONTENT)
def test_what_is_no_info_is_refused(name: str, good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy("v3.0")
    (root / "meta/info.json").write_bytes(CONTENT[name])
    usable, faults = outcome(root)
    assert usable == "refused"
    assert faults


@pytest.mark.parametrize("content", [*CONTENT.values(), b'{"action": [1, 2]}', b'{"action": {"mean": [1, 2]}}'])
def test_statistics_of_any_kind_cost_nothing(content: bytes, good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy("v3.0")
    (root / "meta/stats.json").write_bytes(content)
    usable, faults = outcome(root)
    assert usable == GOOD
    assert {kind for kind, _, _ in faults} <= {"bad_stats", "stats_missing", "image_stats_missing"}
    assert faults


def test_a_huge_info_is_not_read(good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy("v3.0")
    with (root / "meta/info.json").open("wb") as file:
        file.truncate(2**40)
    assert outcome(root)[0] == "refused"


@pytest.mark.parametrize("name", ["info.json", "stats.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_no_file_where_one_should_be(kind: str, name: str, good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy("v3.0")
    path = root / "meta" / name
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "loop": lambda: path.symlink_to(path.name)}[kind]()
    usable, _ = outcome(root)
    assert usable == ("refused" if name == "info.json" else GOOD)


@pytest.mark.parametrize(
    "name", ["", "meta", "meta/info.json", "meta/episodes", "data", "data/chunk-000", "videos", f"videos/{TOP}"]
)
def test_what_may_not_be_read_is_named(name: str, good_sets: Path, public: Path, sealed: Any) -> None:
    root = public / "set"
    shutil.copytree(good_sets / "v3.0", root)
    with (
        sealed(root / name),
        pytest.raises(InputError, match=rf"{re.escape(str(root / name))}.*Permission denied") as no,
    ):
        open_dataset(Source(path=str(root)))
    assert "\n" not in str(no.value)


def test_what_lies_beside_a_dataset_need_not_be_readable(
    good_sets: Path, public: Path, sealed: Any, outcome: Any
) -> None:
    root = public / "disk"
    shutil.copytree(good_sets / "v3.0", root)
    (root / "lost+found").mkdir()
    with sealed(root / "lost+found"):
        assert outcome(root) == (GOOD, set())


def test_folders_that_loop_end(good_copy: Callable[[str], Path], outcome: Any) -> None:
    root = good_copy("v3.0")
    (root / "data/again").symlink_to(root)
    assert outcome(root) == (GOOD, {("unlisted_file", "report", None)})
    (root / "meta/episodes/again").symlink_to(root / "meta")
    assert outcome(root)[0] in (GOOD, "refused")


@pytest.mark.parametrize("path", ["", "\0", "x" * 5000, "a\nb", "~nobody-of-that-name/x"])
def test_paths_that_are_none(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_dataset(Source(path=path))
    assert "\n" not in str(caught.value)


def test_a_file_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("x")
    with pytest.raises(InputError, match="not a folder"):
        open_dataset(Source(path=str(tmp_path / "set")))
