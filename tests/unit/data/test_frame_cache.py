"""Kept frames come back as they were, or not at all."""

import os
from pathlib import Path

import numpy as np
import pytest

from vlarge.contracts import InputError
from vlarge.data.frame_cache import FrameCache

TOP = "observation.images.top"


def images(n: int, size: int = 20) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, size, size, 3), np.uint8)


def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    written, outs = images(4), np.zeros((3, 20, 20, 3), np.uint8)
    cache = FrameCache(tmp_path / "c", (20, 20), 1 << 20)
    assert cache.read(TOP, "7", 9, [2, 5, 8], outs) == [0, 1, 2]
    for frame, image in zip((2, 8), written[:2], strict=True):
        cache.write(TOP, "7", 9, frame, image)
    again = FrameCache(tmp_path / "c", (20, 20), 1 << 20)
    assert again.read(TOP, "7", 9, [2, 5, 8], outs) == [1]
    assert (outs[[0, 2]] == written[:2]).all()
    assert 0 < again.num_bytes <= 3 * 4096


def test_memory_keeps_frames_as_well(tmp_path: Path) -> None:
    cache, written, outs = FrameCache(None, (20, 20), 2500), images(3), np.zeros((3, 20, 20, 3), np.uint8)
    for frame, image in enumerate(written):
        cache.write(TOP, "3", 5, frame, image)
    assert cache.read(TOP, "3", 5, [0, 1, 2], outs) == [2]
    assert (outs[:2] == written[:2]).all()


def test_a_damaged_frame_is_not_shown(tmp_path: Path) -> None:
    cache = FrameCache(tmp_path, (20, 20), 1 << 20)
    cache.write(TOP, "0", 2, 0, images(1)[0])
    cache.write(TOP, "0", 2, 1, images(2)[1])
    path = next(tmp_path.rglob("*.frames"))
    data = bytearray(path.read_bytes())
    data[4096 + 50] ^= 1
    path.write_bytes(data)
    outs = np.zeros((2, 20, 20, 3), np.uint8)
    assert FrameCache(tmp_path, (20, 20), 1 << 20).read(TOP, "0", 2, [0, 1], outs) == [0]


def test_a_file_that_is_cut_short_or_removed_only_costs_its_frames(tmp_path: Path) -> None:
    cache, outs = FrameCache(tmp_path, (20, 20), 1 << 20), np.zeros((2, 20, 20, 3), np.uint8)
    for frame, image in enumerate(images(2)):
        cache.write(TOP, "0", 2, frame, image)
    assert cache.read(TOP, "0", 2, [0, 1], outs) == []
    path = next(tmp_path.rglob("*.frames"))
    os.truncate(path, 4096 + 1300)
    outs[:] = 0
    assert cache.read(TOP, "0", 2, [0, 1], outs) == [1]
    path.unlink()
    assert cache.read(TOP, "0", 2, [0, 1], outs) == [0, 1]


def test_nothing_is_added_beyond_the_budget(tmp_path: Path) -> None:
    cache = FrameCache(tmp_path, (20, 20), 2 * 1200)
    for frame, image in enumerate(images(3)):
        cache.write(TOP, "0", 3, frame, image)
    assert cache.read(TOP, "0", 3, [0, 1, 2], np.zeros((3, 20, 20, 3), np.uint8)) == [2]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cache_dir: cannot write to"):
        FrameCache(tmp_path / "file" / "c", (4, 4), 100)
