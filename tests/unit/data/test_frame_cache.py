"""Kept frames come back as they were, or not at all."""

import os
from pathlib import Path

import numpy as np
import pytest

from vlarge.contracts import InputError
from vlarge.data import frame_cache
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


def test_nothing_is_added_beyond_the_budget_and_that_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = FrameCache(tmp_path, (20, 20), 2 * 1200)
    for frame, image in enumerate(images(4)):
        cache.write(TOP, "0", 4, frame, image)
    assert cache.read(TOP, "0", 4, [0, 1, 2, 3], np.zeros((4, 20, 20, 3), np.uint8)) == [2, 3]
    [told] = [record.getMessage() for record in caplog.records]
    assert "data.cache_bytes = 2400 are taken" in told


def test_frames_of_a_changed_video_make_room_for_the_new_ones(tmp_path: Path) -> None:
    budget_bytes, outs = 4 * 4096, np.zeros((2, 20, 20, 3), np.uint8)
    for stamp in ("old", "new"):
        cache = FrameCache(tmp_path, (20, 20), budget_bytes)
        for number in ("00000006", "00000007"):
            assert cache.read(TOP, f"{number}-{stamp}", 2, [0, 1], outs) == [0, 1]
            for frame, image in enumerate(images(2)):
                cache.write(TOP, f"{number}-{stamp}", 2, frame, image)
            assert cache.read(TOP, f"{number}-{stamp}", 2, [0, 1], outs) == []
        assert [p.stem for p in sorted(tmp_path.rglob("*.frames"))] == [f"00000006-{stamp}", f"00000007-{stamp}"]


def test_whoever_has_frames_of_the_video_as_it_was_loses_them_only(tmp_path: Path) -> None:
    outs = np.zeros((1, 20, 20, 3), np.uint8)
    before, after = (FrameCache(tmp_path, (20, 20), 1 << 20) for _ in range(2))
    before.write(TOP, "7-old", 2, 0, images(1)[0])
    after.write(TOP, "7-new", 2, 0, images(1)[0])
    assert before.read(TOP, "7-old", 2, [0], outs) == [0]
    before.write(TOP, "7-old", 2, 1, images(1)[0])
    before.write(TOP, "8-old", 2, 1, images(1)[0])
    assert before.read(TOP, "8-old", 2, [1], outs) == []
    assert after.read(TOP, "7-new", 2, [0], outs) == []


def test_cameras_of_similar_names_share_nothing(tmp_path: Path) -> None:
    cache, outs = FrameCache(tmp_path, (20, 20), 1 << 20), np.zeros((1, 20, 20, 3), np.uint8)
    for camera in ("cam/a", "cam-a", "cam%2Fa", ".."):
        assert cache.read(camera, "7", 1, [0], outs) == [0]
        cache.write(camera, "7", 1, 0, images(1)[0])
    assert len(list(tmp_path.rglob("*.frames"))) == 4


def test_frames_of_another_version_are_not_read_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FrameCache(tmp_path, (20, 20), 1 << 20).write(TOP, "7", 1, 0, images(1)[0])
    monkeypatch.setattr(frame_cache, "VERSION", "v0")
    cache = FrameCache(tmp_path, (20, 20), 1 << 20)
    assert list(tmp_path.rglob("*.frames")) == []
    assert cache.read(TOP, "7", 1, [0], np.zeros((1, 20, 20, 3), np.uint8)) == [0]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cache_dir: cannot write to"):
        FrameCache(tmp_path / "file" / "c", (4, 4), 100)
