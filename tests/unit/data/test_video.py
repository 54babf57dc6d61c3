"""Frames of an mp4 by integer: the right one, decoded once, or an error."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pytest

from vlarge.contracts import InputError
from vlarge.data import mp4, video
from vlarge.data.check import BrokenFile
from vlarge.data.fetch import open_store
from vlarge.data.picture import to_rgb

CODECS = [("h264", 2), ("h264", 15), ("libsvtav1", 2), ("libsvtav1", 15), ("hevc", 15)]
NUM_FRAMES = 48


def read_table(path: Path) -> mp4.VideoFile:
    return mp4.read_video_file(open_store(path.parent), path.name)


@pytest.fixture(scope="module")
def videos(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """One mp4 per (codec, GOP): two pieces joined without re-encoding, as LeRobot does."""
    folder, found = tmp_path_factory.mktemp("videos"), {}
    for codec, gop in CODECS:
        spec = make_datasets.Spec(codec=codec, gop=gop, size="64x96", preset="10" if codec == "libsvtav1" else "")
        parts = [folder / f"{codec}{gop}_{e}.mp4" for e in range(2)]
        for e, part in enumerate(parts):
            make_datasets.encode(part, (make_datasets.paint(0, e, i, 64, 96) for i in range(NUM_FRAMES // 2)), spec)
        found[codec, gop] = folder / f"{codec}{gop}.mp4"
        make_datasets.concat(parts, found[codec, gop])
    return found


def decode_frames(table: mp4.VideoFile, frames: list[int]) -> Iterator[av.VideoFrame]:
    return video.decode_runs(table, video.plan_runs(table, frames))


def all_frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("codec", CODECS)
def test_the_table_is_what_ffmpegs_demuxer_says(codec: tuple[str, int], videos: dict[tuple[str, int], Path]) -> None:
    path = videos[codec]
    store, size = open_store(path.parent), path.stat().st_size
    table = mp4._from_moov(store, path.name, mp4._read_moov(store, path.name, size), size)
    scan = mp4.scan_packets(open_store(path.parent), path.name)
    for name in ("offset_P", "size_P", "pts_P", "is_key_P", "frame_packets_F"):
        assert np.array_equal(getattr(table, name), getattr(scan, name)), name
    for name in ("codec", "extradata", "height", "width", "time_base", "file_bytes"):
        assert getattr(table, name) == getattr(scan, name), name
    assert table.num_frames == NUM_FRAMES
    assert table.complete_F.all()


@pytest.mark.parametrize("codec", CODECS)
def test_any_choice_of_frames_is_the_same_as_decoding_all(
    codec: tuple[str, int], videos: dict[tuple[str, int], Path]
) -> None:
    table, reference = read_table(videos[codec]), all_frames(videos[codec])
    rng = np.random.default_rng(0)
    choices = [list(range(NUM_FRAMES)), [NUM_FRAMES - 1], [0, 47], [23, 24]]
    choices += [np.flatnonzero(rng.random(NUM_FRAMES) < 0.15).tolist() for _ in range(10)]
    for frames in choices:
        decoded = [to_rgb(picture) for picture in decode_frames(table, frames)]
        for number, image in zip(frames, decoded, strict=True):
            assert np.array_equal(image, reference[number]), (frames, number)


@pytest.mark.parametrize("codec", CODECS)
def test_each_packet_is_decoded_once(codec: tuple[str, int], videos: dict[tuple[str, int], Path]) -> None:
    table = read_table(videos[codec])
    assert video.num_packets(table, range(NUM_FRAMES)) == NUM_FRAMES
    runs = video.plan_runs(table, range(0, NUM_FRAMES, 5))
    for before, after in pairwise(runs):
        assert before.stop < after.start  # those that touch are one run
    if codec[1] == 2:
        assert video.num_packets(table, [10, 30]) <= 4


@pytest.mark.parametrize("codec", CODECS)
def test_frames_that_start_afresh_share_no_packet(codec: tuple[str, int], videos: dict[tuple[str, int], Path]) -> None:
    table = read_table(videos[codec])
    frames = np.arange(NUM_FRAMES)
    cuts = np.flatnonzero(video.starts_afresh(table, frames))
    pieces = np.split(frames, cuts[1:])
    assert len(pieces) >= (NUM_FRAMES // 3 if codec[1] == 2 else 2)
    assert sum(video.num_packets(table, piece.tolist()) for piece in pieces) == NUM_FRAMES


def test_a_frame_with_another_time_stamp_is_never_returned(
    videos: dict[tuple[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, pictures = read_table(videos["h264", 15]), video._pictures
    claimed = replace(table, pts_P=table.pts_P + np.where(table.pts_P == table.pts_F[20], 1, 0))
    monkeypatch.setattr(video, "_pictures", lambda _, run: pictures(table, run))
    with pytest.raises(InputError, match=r"frame 20 .*time stamp"):
        list(decode_frames(claimed, [19, 20, 21]))


def test_want_of_memory_is_not_the_files_fault(
    videos: dict[tuple[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise av.error.MemoryError(12, "Cannot allocate memory")

    monkeypatch.setattr(video, "_pictures", none_left)
    with pytest.raises(MemoryError):
        list(decode_frames(read_table(videos["h264", 15]), [3]))
    monkeypatch.setattr(av, "open", none_left)
    path = videos["h264", 15]
    with pytest.raises(MemoryError):
        mp4.scan_packets(open_store(path.parent), path.name)


def test_a_frame_that_the_decoder_drops_is_missed(
    videos: dict[tuple[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, pictures = read_table(videos["h264", 15]), video._pictures
    dropped = table.pts_F[20]
    monkeypatch.setattr(video, "_pictures", lambda *a: (p for p in pictures(*a) if p.pts != dropped))
    assert len(list(decode_frames(table, [19, 21]))) == 2
    for frames in ([19, 20, 21], [18, 20]):
        with pytest.raises(InputError, match="frame 20 "):
            list(decode_frames(table, frames))


def test_a_frame_beyond_the_end_is_refused(videos: dict[tuple[str, int], Path]) -> None:
    with pytest.raises(InputError, match=f"has {NUM_FRAMES}"):
        list(decode_frames(read_table(videos["h264", 2]), [NUM_FRAMES]))


def test_a_file_that_shrinks_later_is_named(videos: dict[tuple[str, int], Path], tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(videos["h264", 2].read_bytes())
    table = read_table(path)
    path.write_bytes(path.read_bytes()[: int(table.offset_P[30]) + 3])
    with pytest.raises(InputError, match=r"video\.mp4.*truncated"):
        list(decode_frames(table, [29, 30]))


@pytest.mark.parametrize(("codec", "frames"), [(("libsvtav1", 2), [8, 10, 12]), (("h264", 2), [8, 11, 12])])
def test_damage_is_an_error_also_where_others_refer_to_it(
    codec: tuple[str, int], frames: list[int], videos: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    path, table = tmp_path / "video.mp4", read_table(videos[codec])
    data = bytearray(videos[codec].read_bytes())
    start, size = int(table.offset_P[10]), int(table.size_P[10])
    data[start + size // 3 : start + size] = bytes(size - size // 3)  # key frame 10; frame 11 refers to it
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"frame {frames[1]} "):
        list(decode_frames(read_table(path), frames))
    assert len(list(decode_frames(read_table(path), [8, 9, 12, 13]))) == 4


def test_truncation_is_seen_in_the_table(videos: dict[tuple[str, int], Path], tmp_path: Path) -> None:
    path, whole = tmp_path / "video.mp4", read_table(videos["h264", 15])
    path.write_bytes(videos["h264", 15].read_bytes()[: int(whole.offset_P[30]) + 1])
    table = read_table(path)
    assert table.num_frames == NUM_FRAMES
    assert set(table.frame_packets_F[table.complete_F]) == set(range(30))


def _without_moov(data: bytes) -> bytes:
    kept = b""
    while data:
        size, kind = struct.unpack(">I4s", data[:8])
        kept, data = kept if kind == b"moov" else kept + data[:size], data[size:]
    return kept


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("missing_mp4", None),
        ("empty_mp4", lambda data: b""),
        ("moov_missing", _without_moov),
        ("unreadable_mp4", lambda data: b"not a video at all"),
        ("unreadable_mp4", lambda data: data.replace(b"avc1", b"zzzz")),
    ],
)
def test_unusable_files_say_what_is_wrong(
    kind: str, change: object, videos: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    path = tmp_path / "video.mp4"
    if callable(change):
        path.write_bytes(change(videos["h264", 2].read_bytes()))
    with pytest.raises(BrokenFile) as caught:
        read_table(path)
    assert caught.value.kind == kind


@pytest.mark.parametrize("flags", ["frag_keyframe+empty_moov", "faststart"])
def test_fragmented_and_reordered_files_are_read_too(flags: str, make_datasets: ModuleType, tmp_path: Path) -> None:
    path, images = tmp_path / "video.mp4", [make_datasets.paint(0, 0, i, 64, 96) for i in range(12)]
    with av.open(str(path), "w", options={"movflags": flags}) as out:
        stream = out.add_stream("h264", rate=30, options={"g": "4"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for image in images:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode())
    table = read_table(path)
    assert table.num_frames == 12
    for number, picture in zip([0, 5, 6, 11], decode_frames(table, [0, 5, 6, 11]), strict=True):
        assert make_datasets.decode_identity(to_rgb(picture)) == (0, 0, number)


def _with_wide_times(data: bytes, *path: bytes) -> bytes:
    """Boxes with the media header below `path` in its version 1: dates and duration of 64 bits."""
    kept = b""
    while data:
        size = int.from_bytes(data[:4])
        kind, content, data = data[4:8], data[8:size], data[size:]
        if kind == b"mdhd":
            created, changed, scale, duration = struct.unpack_from(">4I", content, 4)
            content = b"\1" + content[1:4] + struct.pack(">QQIQ", created, changed, scale, duration) + content[20:]
        elif kind in path:
            content = _with_wide_times(content, *path)
        kept += struct.pack(">I4s", 8 + len(content), kind) + content
    return kept


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("num_before", [5, 0])
def test_trimmed_files_show_only_what_their_edit_list_shows(
    num_before: int, wide: bool, videos: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    # As `ffmpeg -ss` and `-t` without re-encoding leave them: packets outside the edit are never shown.
    data = bytearray(videos["libsvtav1", 15].read_bytes())
    edit = data.index(b"elst") + 4
    duration, media_time = struct.unpack_from(">Ii", data, edit + 8)
    table = read_table(videos["libsvtav1", 15])
    ticks = int(table.pts_F[1]) * num_before
    struct.pack_into(">Ii", data, edit + 8, duration * (NUM_FRAMES - 5) // NUM_FRAMES, media_time + ticks)
    if wide:
        start = data.index(b"moov") - 4
        moov = bytes(data[start : start + int.from_bytes(data[start : start + 4])])
        data[start + 4 : start + 8] = b"free"  # the other one comes last, so that packets stay where they are
        data += _with_wide_times(moov, b"moov", b"trak", b"mdia")
    (tmp_path / "video.mp4").write_bytes(data)
    trimmed, reference = read_table(tmp_path / "video.mp4"), all_frames(tmp_path / "video.mp4")
    assert trimmed.num_frames == len(reference) == NUM_FRAMES - 5
    for number, picture in zip([0, 7, 20], decode_frames(trimmed, [0, 7, 20]), strict=True):
        assert np.array_equal(to_rgb(picture), reference[number])


@pytest.mark.parametrize("kind", ["png", "mjpeg"])
def test_pictures_in_a_table(kind: str, make_datasets: ModuleType) -> None:
    image = make_datasets.paint(1, 2, 3, 96, 128)
    decoded = video.decode_image(make_datasets.image_bytes(image, kind), "here")
    assert make_datasets.decode_identity(decoded) == (1, 2, 3)
    assert kind == "mjpeg" or np.array_equal(decoded, image)
    with pytest.raises(InputError, match="here"):
        video.decode_image(b"\x89PNG broken", "here")
    with pytest.raises(InputError, match="here"):
        video.decode_image(b"", "here")
