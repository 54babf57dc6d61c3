"""Damaged and unusual videos of all kinds: what is left is right, what is left out is named, nothing escapes."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.long  # the rows of FAULTS.md themselves are in test_faults.py

GOOD = [0, 1, 2, 3, 4, 5]
TOP, WRIST = "observation.images.top", "observation.images.wrist"
FPS = 10
Variant = tuple[str, Callable[[Path, ModuleType], None], list[int] | str, set[str]]
VARIANTS: dict[str, Variant] = {}


def variant(version: str, usable: list[int] | str, *kinds: str) -> Callable[[Any], Any]:
    """Registers a damage: which episodes are left, or "refused", and the kinds of fault that must be named."""

    def register(change: Callable[[Path, ModuleType], None]) -> Callable[[Path, ModuleType], None]:
        VARIANTS[change.__name__] = (version, change, usable, set(kinds))
        return change

    return register


def file(root: Path, key: str, number: int) -> Path:
    return sorted((root / "videos").rglob(f"{key}/**/*.mp4" if (root / "meta/episodes").is_dir() else f"{key}/*.mp4"))[
        number
    ]


def recode(
    path: Path,
    times: Callable[[list[np.ndarray]], list[tuple[int, np.ndarray]]],
    options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
    with_audio: bool = False,
) -> None:
    """Encodes a video again: `times` gives (pts in frames, picture) of each frame."""
    import av

    with av.open(str(path)) as source:
        pictures = [f.to_ndarray(format="rgb24") for f in source.decode(video=0)]
    with av.open(str(path), "w", format="mp4", options=options or {}) as out:
        if with_audio:
            audio = out.add_stream("aac", rate=48000)
        stream = out.add_stream("libx264", rate=FPS, options={"g": "4", "crf": "20", **(codec_options or {})})
        stream.width, stream.height, stream.pix_fmt = pictures[0].shape[1], pictures[0].shape[0], "yuv420p"
        if with_audio:
            sound = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
            sound.sample_rate, sound.pts = 48000, 0
            out.mux(audio.encode(sound))
            out.mux(audio.encode())
        for pts, picture in times(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = pts, Fraction(1, FPS)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def regular(pictures: list[np.ndarray]) -> list[tuple[int, np.ndarray]]:
    return list(enumerate(pictures))


def move(
    root: Path, damage: ModuleType, key: str, starts: dict[int, float], ends: dict[int, float] | None = None
) -> None:
    """Sets from_timestamp (and to_timestamp) of a camera's episodes, in frames."""

    def change(row: dict[str, Any]) -> dict[str, Any]:
        for name, values in (("from", starts), ("to", ends or {})):
            if row["episode_index"] in values:
                row[f"videos/{key}/{name}_timestamp"] = values[row["episode_index"]] / FPS
        return row

    damage.edit_episodes(root, change)


def patch(path: Path, *boxes: bytes, at: int, data: bytes) -> None:
    """Overwrites bytes inside a box, `at` from the start of its content. Boxes are searched one inside the other."""
    content, start = bytearray(path.read_bytes()), 0
    for box in boxes:
        start = content.index(box, start) + 4
    content[start + at : start + at + len(data)] = data
    path.write_bytes(content)


# The pointers of metadata. `top`: episodes 0-2 (15, 13, 12 frames), 3-5 (10, 10, 8); `wrist`: 0-1, 2-3, 4-5.


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def one_frame_early(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: 14}, {1: 27})


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def one_frame_late(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: 16}, {1: 29})


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def start_alone_early(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: 14})


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def half_a_frame_early(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: 14.5})


@variant("v3.0", GOOD)
def a_rounding_error_early(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: 15 - 1e-4})


@variant("v3.0", [1, 2, 3, 4, 5], "wrong_from_timestamp")
def first_of_file_late(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {0: 2}, {0: 17})


@variant("v3.0", [0, 1, 2, 3, 4], "wrong_from_timestamp")
def last_of_file_early(root: Path, damage: ModuleType) -> None:
    move(root, damage, WRIST, {5: 9}, {5: 17})


@variant("v3.0", [0, 1, 2, 3, 4], "wrong_from_timestamp")
def last_of_file_late(root: Path, damage: ModuleType) -> None:
    move(root, damage, WRIST, {5: 12}, {5: 20})


@variant("v3.0", [0, 1, 2, 4, 5], "wrong_from_timestamp")
def other_camera_late(root: Path, damage: ModuleType) -> None:
    move(root, damage, WRIST, {3: 13}, {3: 23})


@variant("v3.0", [2, 3, 4, 5], "wrong_from_timestamp")
def swapped(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {0: 13, 1: 0}, {0: 28, 1: 13})


@variant("v3.0", [0, 1, 2, 5], "wrong_from_timestamp")
def swapped_of_one_length(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {3: 10, 4: 0}, {3: 20, 4: 10})


@variant("v3.0", [0, 1, 2, 3, 5], "wrong_from_timestamp")
def both_start_at_zero(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {4: 0}, {4: 10})


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def start_is_not_a_number(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: float("nan")})


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def start_is_infinite(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: float("inf")})


@variant("v3.0", [0, 2, 3, 4, 5], "wrong_from_timestamp")
def start_is_negative(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: -5})


@variant("v3.0", [0, 1, 2, 4, 5], "missing_mp4")
def pointer_is_null(root: Path, damage: ModuleType) -> None:
    damage.edit_episodes(root, lambda r: r | ({f"videos/{WRIST}/file_index": None} if r["episode_index"] == 3 else {}))


@variant("v3.0", [0, 1, 2, 4, 5], "wrong_from_timestamp")
def start_is_null(root: Path, damage: ModuleType) -> None:
    damage.edit_episodes(
        root, lambda r: r | ({f"videos/{WRIST}/from_timestamp": None} if r["episode_index"] == 3 else {})
    )


@variant("v3.0", [0, 1, 3, 4, 5], "wrong_from_timestamp")
def pointer_is_another_file(root: Path, damage: ModuleType) -> None:
    damage.edit_episodes(root, lambda r: r | ({f"videos/{WRIST}/file_index": 2} if r["episode_index"] == 2 else {}))


@variant("v3.0", [0, 2, 3, 5], "wrong_from_timestamp", "missing_frame")
def late_and_a_row_missing_elsewhere(root: Path, damage: ModuleType) -> None:
    move(root, damage, TOP, {1: 17}, {1: 30})
    import pyarrow as pa

    def cut(t: pa.Table) -> pa.Table:
        return t.filter(pa.array(~((t["episode_index"].to_numpy() == 4) & (t["frame_index"].to_numpy() == 9))))

    damage.edit_data(root, cut)


# Frames that are too few or too many.


@variant("v3.0", [0, 1, 2, 3, 4], "short_video")
def one_frame_short(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, WRIST, 2), lambda frames: frames[:-1])


@variant("v3.0", [0, 1, 2, 3], "short_video")
def longer_than_an_episode_short(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, WRIST, 2), lambda frames: frames[:-9])


@variant("v2.1", [1, 2, 3, 4, 5], "short_video")
def first_episode_one_frame_short(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, WRIST, 0), lambda frames: frames[:-1], damage.BASE["v2.1"])


@variant("v3.0", [0, 2, 3, 4, 5], "short_video")
def a_frame_lost_before_concatenation(root: Path, damage: ModuleType) -> None:
    """What comes after is where metadata says; only this episode's own pictures are too few."""
    damage.rewrite_video(file(root, TOP, 0), lambda frames: frames[:20] + frames[21:])
    move(root, damage, TOP, {2: 27}, {1: 27, 2: 39})


@variant("v3.0", [2, 3, 4, 5], "short_video")
def a_frame_lost_before_concatenation_and_the_next_episode_too(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, TOP, 0), lambda frames: frames[:3] + frames[4:20] + frames[21:])
    move(root, damage, TOP, {1: 14, 2: 26}, {0: 14, 1: 26, 2: 38})


@variant("v3.0", [0, 2, 3, 4, 5], "long_video")
def a_frame_doubled_before_concatenation(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, TOP, 0), lambda frames: frames[:21] + frames[20:])
    move(root, damage, TOP, {2: 29}, {1: 29, 2: 41})


@variant("v3.0", [3, 4, 5], "long_video")
def a_frame_doubled_in_the_file(root: Path, damage: ModuleType) -> None:
    """Nothing says where the surplus is: every episode of the file may be shifted."""
    damage.rewrite_video(file(root, TOP, 0), lambda frames: frames[:3] + frames[2:])


@variant("v3.0", [3, 4, 5], "long_video")
def frames_after_the_last_episode(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, TOP, 0), lambda frames: frames + frames[-3:])


@variant("v2.1", [0, 1, 2, 4, 5], "long_video")
def one_episode_has_more_frames_than_rows(root: Path, damage: ModuleType) -> None:
    damage.rewrite_video(file(root, TOP, 3), lambda frames: [frames[0], *frames], damage.BASE["v2.1"])


@variant("v2.1", GOOD, "long_video")
def every_episode_has_one_frame_more(root: Path, damage: ModuleType) -> None:
    """A recorder's habit, no accident: one picture is taken after the last action."""
    for i in range(6):
        damage.rewrite_video(file(root, TOP, i), lambda frames: [*frames, frames[-1]], damage.BASE["v2.1"])


@variant("v2.1", [0, 1, 2, 3], "short_video", "long_video")
def files_of_two_episodes_swapped(root: Path, damage: ModuleType) -> None:
    one, other = file(root, TOP, 4), file(root, TOP, 5)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


# Times inside the file.


@variant("v3.0", [2, 3, 4, 5], "irregular_video")
def a_skipped_time(root: Path, damage: ModuleType) -> None:
    recode(file(root, WRIST, 0), lambda p: [(i + (i > 4), x) for i, x in enumerate(p)])


@variant("v2.1", [0, 1, 3, 4, 5], "irregular_video")
def a_skipped_time_in_one_episode(root: Path, damage: ModuleType) -> None:
    recode(file(root, WRIST, 2), lambda p: [(i + (i > 4), x) for i, x in enumerate(p)])


@variant("v3.0", GOOD)
def the_file_starts_late(root: Path, damage: ModuleType) -> None:
    recode(file(root, WRIST, 0), lambda p: [(i + 2, x) for i, x in enumerate(p)], {"use_editlist": "0"})


@variant("v2.1", GOOD)
def an_episodes_file_starts_late(root: Path, damage: ModuleType) -> None:
    recode(file(root, WRIST, 0), lambda p: [(i + 2, x) for i, x in enumerate(p)], {"use_editlist": "0"})


# Containers.


@variant("v3.0", GOOD)
def fragmented(root: Path, damage: ModuleType) -> None:
    recode(file(root, TOP, 0), regular, {"movflags": "frag_keyframe+empty_moov"})


@variant("v2.1", GOOD)
def fragmented_episode(root: Path, damage: ModuleType) -> None:
    recode(file(root, TOP, 1), regular, {"movflags": "frag_keyframe+empty_moov+default_base_moof"})


@variant("v3.0", [0, 1, 2], "")
def fragmented_and_cut(root: Path, damage: ModuleType) -> None:
    path = file(root, TOP, 1)
    recode(path, regular, {"movflags": "frag_keyframe+empty_moov"})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


@variant("v3.0", GOOD)
def audio_first(root: Path, damage: ModuleType) -> None:
    recode(file(root, TOP, 0), regular, with_audio=True)


@variant("v3.0", GOOD)
def index_at_the_front(root: Path, damage: ModuleType) -> None:
    recode(file(root, TOP, 0), regular, {"movflags": "faststart"})


@variant("v3.0", GOOD)
def negative_decoding_times(root: Path, damage: ModuleType) -> None:
    recode(file(root, TOP, 0), regular, {"movflags": "negative_cts_offsets"}, {"bf": "3"})


@variant("v3.0", GOOD)
def no_edit_list(root: Path, damage: ModuleType) -> None:
    recode(file(root, TOP, 0), regular, {"use_editlist": "0"}, {"bf": "3"})


@variant("v3.0", [3, 4, 5], "moov_missing")
def cut_inside_the_index(root: Path, damage: ModuleType) -> None:
    path = file(root, TOP, 0)
    recode(path, regular)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"stco") + 6])


@variant("v3.0", GOOD, "rotated_video")
def rotated(root: Path, damage: ModuleType) -> None:
    matrix = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 96 << 16, 0, 1 << 30)
    patch(file(root, TOP, 0), b"tkhd", at=40, data=matrix)


@variant("v3.0", GOOD)
def no_size_in_the_track(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"tkhd", at=76, data=bytes(8))


@variant("v3.0", GOOD)
def no_size_in_the_sample_entry(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"avc1", at=24, data=bytes(4))


@variant("v3.0", [3, 4, 5], "")
def no_time_scale(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"mdhd", at=12, data=bytes(4))


@variant("v3.0", [3, 4, 5], "")
def four_thousand_million_packets(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"stsz", at=4, data=struct.pack(">II", 7, 2**32 - 1))


@variant("v3.0", GOOD)
def endless_durations(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"stts", at=8, data=struct.pack(">I", 2**32 - 1))


@variant("v3.0", [3, 4, 5], "")
def packets_beyond_the_file(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"stco", at=8, data=struct.pack(">I", 2**31))


@variant("v3.0", GOOD)
def a_key_frame_that_is_not_there(root: Path, damage: ModuleType) -> None:
    patch(file(root, TOP, 0), b"stss", at=8, data=struct.pack(">I", 0))


@variant("v3.0", [3, 4, 5], "unreadable_mp4")
def text_instead_of_video(root: Path, damage: ModuleType) -> None:
    file(root, TOP, 0).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n")


@variant("v3.0", [3, 4, 5], "unreadable_mp4")
def noise_instead_of_video(root: Path, damage: ModuleType) -> None:
    file(root, TOP, 0).write_bytes(np.random.default_rng(0).bytes(5000))


@variant("v3.0", [3, 4, 5], "unreadable_mp4")
def a_playlist_instead_of_video(root: Path, damage: ModuleType) -> None:
    file(root, TOP, 0).write_text(
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n"
    )


@variant("v3.0", [3, 4, 5], "unreadable_mp4")
def four_bytes(root: Path, damage: ModuleType) -> None:
    file(root, TOP, 0).write_bytes(b"\0\0\0\1")


@variant("v3.0", [3, 4, 5], "moov_missing")
def a_box_of_half_a_length(root: Path, damage: ModuleType) -> None:
    file(root, TOP, 0).write_bytes(struct.pack(">I4s8x", 16, b"ftyp") + struct.pack(">I4s", 1, b"mdat") + b"\0\0\0")


@variant("v3.0", [3, 4, 5], "missing_mp4")
def a_folder_instead_of_video(root: Path, damage: ModuleType) -> None:
    path = file(root, TOP, 0)
    path.unlink()
    path.mkdir()


@variant("v3.0", [3, 4, 5], "missing_mp4")
def a_link_to_itself(root: Path, damage: ModuleType) -> None:
    path = file(root, TOP, 0)
    path.unlink()
    path.symlink_to(path.name)


@variant("v3.0", [3, 4, 5], "missing_mp4")
def a_pipe_instead_of_video(root: Path, damage: ModuleType) -> None:
    path = file(root, TOP, 0)
    path.unlink()
    os.mkfifo(path)


@variant("v3.0", GOOD, "wrong_resolution")
def one_file_is_smaller(root: Path, damage: ModuleType) -> None:
    import make_datasets as md

    small = md.Spec(**(vars(damage.BASE["v3.0"]) | {"size": "48x64"}))
    damage.rewrite_video(file(root, WRIST, 1), lambda frames: [f[::2, ::2].copy() for f in frames], small)


@variant("v3.0", GOOD, "phantom_camera")
def no_file_of_one_camera(root: Path, damage: ModuleType) -> None:
    for path in (root / "videos" / WRIST).rglob("*.mp4"):
        path.unlink()


@variant("v3.0", [0, 1], "")
def several_files_damaged(root: Path, damage: ModuleType) -> None:
    file(root, TOP, 1).unlink()
    file(root, WRIST, 1).write_bytes(b"")
    file(root, WRIST, 2).write_bytes(b"x" * 100)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_damaged_video_costs_only_its_episodes(
    name: str, damage: ModuleType, good_copy: Callable[[str], Path], outcome: Callable[[Path], Any]
) -> None:
    version, change, expected, kinds = VARIANTS[name]
    root = good_copy(version)
    change(root, damage)
    usable, faults = outcome(root)
    named = {kind for kind, _, _ in faults}
    assert (usable, kinds - {""} - named) == (expected, set()), faults
    assert bool(faults) == bool(kinds)
    out = {e for _, action, e in faults if action == "quarantine"}
    assert usable == "refused" or out == set(GOOD) - set(usable)
