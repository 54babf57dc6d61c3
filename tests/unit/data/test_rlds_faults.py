"""Damaged RLDS datasets: what is broken is named, by episode and file; the rest is right."""

from __future__ import annotations

import importlib
import json
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlds_writer import STEP, image, named, numbers, tensor, write

from vlarge.cli import main as cli
from vlarge.contracts import InputError
from vlarge.data.check import Refused, Unreachable
from vlarge.data.config import Source
from vlarge.data.fetch import open_store
from vlarge.data.formats import rlds_records
from vlarge.data.formats.rlds_records import iter_records, masked_crc
from vlarge.data.index import Dataset, open_dataset

INFO = "dataset_info.json"


@pytest.fixture(scope="module")
def good(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rlds") / "set"
    spec = make_datasets.Spec("rlds", episodes=6, length="2:6", size="48x64", seed=1)
    make_datasets.make(root, spec)
    return root / "synthetic/1.0.0"


@pytest.fixture
def root(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "set"))


def shard(root: Path, number: int) -> Path:
    return sorted(root.glob("*.tfrecord-*"))[number]


def record_starts(path: Path) -> list[int]:
    """Where each record begins, and where the last one ends."""
    data, starts = path.read_bytes(), [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 16 + struct.unpack_from("<Q", data, starts[-1])[0])
    return starts


def overwrite(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, position: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0xFF]))


def edit_info(root: Path, **changes: Any) -> None:
    info = json.loads((root / INFO).read_text())
    info["splits"][0] |= changes
    (root / INFO).write_text(json.dumps(info))


def opened(root: Path, md: ModuleType) -> tuple[list[int], set[tuple[str, str, int | None]]]:
    """Episodes whose every picture and number is right, and the faults beside the missing rate."""
    dataset = open_dataset(Source(path=str(root)))
    for episode in dataset.episodes:
        frames = np.arange(episode.length)
        table = dataset.read_table(episode)
        np.testing.assert_array_equal(table.state_TA, md.state_of(episode.index, frames, dataset.state_dim))
        for camera, key in enumerate(dataset.camera_keys):
            identities = [md.decode_identity(i) for i in dataset.read_frames(episode, key, range(episode.length))]
            assert identities == [(camera, episode.index, frame) for frame in frames]
    faults = {(f.kind, f.action, f.episode) for f in dataset.faults if f.kind != "unknown_fps"}
    return [e.index for e in dataset.episodes], faults


def out(kind: str, *episodes: int) -> set[tuple[str, str, int | None]]:
    return {(kind, "quarantine", number) for number in episodes}


def test_nothing_is_wrong_with_a_good_one(root: Path, make_datasets: ModuleType) -> None:
    assert opened(root, make_datasets) == ([0, 1, 2, 3, 4, 5], set())


@pytest.mark.parametrize(
    ("name", "left", "faults"),
    [
        ("rlds_bad_crc", [1, 2, 3, 4, 5], out("bad_checksum", 0)),
        ("rlds_truncated", [0, 1, 2, 3, 4], out("truncated_record", 5)),
        ("rlds_missing_shard", [0, 1, 2], out("missing_shard", 3, 4, 5)),
        ("rlds_no_features_json", None, None),
    ],
)
def test_rows_of_the_list_of_faults(
    name: str,
    left: list[int] | None,
    faults: set[tuple[str, str, int | None]] | None,
    make_datasets: ModuleType,
    tmp_path: Path,
) -> None:
    dataset_faults = importlib.import_module("dataset_faults")
    make_datasets.make(tmp_path / "set", dataset_faults.BASE["rlds"])
    dataset_faults.FAULTS[name][1](tmp_path / "set")
    if left is None:
        with pytest.raises(Refused, match=r"synthetic/1\.0\.0/features\.json: there is no such file"):
            open_dataset(Source(path=str(tmp_path / "set")))
    else:
        assert opened(tmp_path / "set", make_datasets) == (left, faults)


def cut_in_first_record(root: Path) -> None:
    shard(root, 1).write_bytes(shard(root, 1).read_bytes()[:100])


def cut_in_a_header(root: Path) -> None:
    path = shard(root, 0)
    path.write_bytes(path.read_bytes()[: record_starts(path)[2] + 5])


def cut_between_records(root: Path) -> None:
    path = shard(root, 0)
    path.write_bytes(path.read_bytes()[: record_starts(path)[2]])


def empty_shard(root: Path) -> None:
    shard(root, 0).write_bytes(b"")


def checksum_of_a_length(root: Path) -> None:
    flip(shard(root, 0), record_starts(shard(root, 0))[1] + 9)


def a_length(root: Path) -> None:
    flip(shard(root, 0), record_starts(shard(root, 0))[1])


def an_absurd_length(root: Path) -> None:
    length = struct.pack("<Q", 1 << 60)
    header = length + struct.pack("<I", masked_crc(length))
    overwrite(shard(root, 0), record_starts(shard(root, 0))[1], header)


def trailing_garbage(root: Path) -> None:
    shard(root, 0).write_bytes(shard(root, 0).read_bytes() + b"\0" * 1000)


def a_trailing_byte(root: Path) -> None:
    shard(root, 1).write_bytes(shard(root, 1).read_bytes() + b"x")


def too_few_promised(root: Path) -> None:
    edit_info(root, shardLengths=["2", "1"])


def too_many_promised(root: Path) -> None:
    edit_info(root, shardLengths=["3", "4"])


def payload_is_no_example(root: Path) -> None:
    path = shard(root, 0)
    start, stop = record_starts(path)[1:3]
    payload = b"\xff" * (stop - start - 16)
    overwrite(path, start + 12, payload + struct.pack("<I", masked_crc(payload)))


@pytest.mark.parametrize(
    ("change", "left", "faults"),
    [
        (cut_in_first_record, [0, 1, 2], out("truncated_record", 3, 4, 5)),
        (cut_in_a_header, [0, 1, 3, 4, 5], out("truncated_record", 2)),
        (cut_between_records, [0, 1, 3, 4, 5], out("truncated_record", 2)),
        (empty_shard, [3, 4, 5], out("empty_shard", 0, 1, 2)),
        (checksum_of_a_length, [0, 2, 3, 4, 5], out("bad_checksum", 1)),
        (a_length, [0, 3, 4, 5], out("bad_checksum", 1, 2)),
        (an_absurd_length, [0, 3, 4, 5], out("truncated_record", 1, 2)),
        (trailing_garbage, [0, 1, 2, 3, 4, 5], {("trailing_bytes", "report", None)}),
        (a_trailing_byte, [0, 1, 2, 3, 4, 5], {("trailing_bytes", "report", None)}),
        (too_few_promised, [0, 1, 2, 3, 4, 5], {("wrong_totals", "report", None)}),
        (too_many_promised, [0, 1, 2, 3, 4, 5], {("wrong_totals", "report", None)}),
        (payload_is_no_example, [0, 2, 3, 4, 5], out("bad_record", 1)),
    ],
)
def test_damage_costs_the_episodes_it_is_in(
    change: Callable[[Path], None],
    left: list[int],
    faults: set[tuple[str, str, int | None]],
    root: Path,
    make_datasets: ModuleType,
) -> None:
    change(root)
    assert opened(root, make_datasets) == (left, faults)


@pytest.mark.parametrize(
    ("file", "content", "kind", "message"),
    [
        (INFO, None, "missing_metadata", "dataset_info.json: there is no such file"),
        (INFO, "{", "info_invalid_json", "line 1 column 2: invalid JSON"),
        (INFO, "[]", "bad_info", "it has no list of splits"),
        (INFO, {"shardLengths": ["-1"]}, "bad_info", "shardLengths of split 'train' should be a list of counts"),
        (INFO, {"filepathTemplate": "../{DATASET}"}, "bad_template", "not a path inside the dataset"),
        (INFO, {"filepathTemplate": "{SECRET}"}, "bad_template", "has {SECRET}; known fields: DATASET, SPLIT"),
        (INFO, {"filepathTemplate": "x" * 300}, "bad_template", "a path too long for a file"),
        (INFO, {"filepathTemplate": "{SHARD.x}"}, "bad_template", "not a path inside the dataset"),
        ("features.json", '{"a": 1', "info_invalid_json", "line 1 column 8: invalid JSON"),
        ("features.json", "[1]", "bad_features", "it does not describe features"),
        ("features.json", json.dumps(STEP["observation"]), "bad_features", "it has no dataset 'steps'"),
        ("features.json", '{"pythonClassName": "antigravity.X"}', "bad_features", "unknown class 'antigravity.X'"),
        ("features.json", json.dumps(tensor("bfloat17", 2)), "bad_features", "unknown dtype 'bfloat17'"),
    ],
)
def test_metadata_that_cannot_be_used_is_refused(file: str, content: Any, kind: str, message: str, root: Path) -> None:
    if isinstance(content, dict):
        edit_info(root, **content)
    elif content is None:
        (root / file).unlink()
    else:
        (root / file).write_text(content)
    with pytest.raises(Refused, match=message) as refused:
        open_dataset(Source(path=str(root)))
    assert refused.value.fault.kind == kind
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["array_record", "riegeli", "parquet"])
def test_other_file_formats_are_refused_by_name(kind: str, root: Path) -> None:
    info = json.loads((root / INFO).read_text()) | {"fileFormat": kind}
    (root / INFO).write_text(json.dumps(info))
    with pytest.raises(Refused, match=f"fileFormat is '{kind}'; only 'tfrecord' is read"):
        open_dataset(Source(path=str(root)))


CAMERAS = STEP | {"observation": named({"state": tensor("float32", 3), "cam": image(8, 8, 3)})}
CAM = "steps/observation/cam"


@pytest.fixture(scope="module")
def picture(make_datasets: ModuleType) -> bytes:
    data: bytes = make_datasets.image_bytes(np.full((8, 8, 3), 128, np.uint8), "mjpeg")
    return data


def open_one(folder: Path, md: ModuleType, picture: bytes, changes: dict[str, Any]) -> Dataset:
    """A good episode of three steps, and one with changes; a value of None takes a feature out."""
    good = numbers(3) | {CAM: [picture] * 3}
    changed = {name: values for name, values in (good | changes).items() if values is not None}
    return open_dataset(Source(path=str(write(folder, md, CAMERAS, [good, changed, good]))))


@pytest.mark.parametrize(
    ("changes", "kind", "action"),
    [
        ({"steps/observation/state": np.array([np.inf] * 9, "f4")}, "nan_states", "quarantine"),
        ({"steps/action": None}, "missing_column", "quarantine"),
        ({CAM: None}, "missing_column", "quarantine"),
        ({"steps/action": np.ones(4, "f4")}, "missing_frame", "quarantine"),
        ({"steps/action": np.ones(5, "f4")}, "bad_record", "quarantine"),
        ({"steps/action": [b"x"]}, "bad_record", "quarantine"),
        ({CAM: [b"x"] * 3}, "bad_picture", "quarantine"),
        ({CAM: [b""] * 3}, "bad_picture", "quarantine"),
        ({CAM: [b"x"] * 2}, "missing_frame", "quarantine"),
        ({name: v[:0] for name, v in (numbers(1) | {CAM: [b""]}).items()}, "zero_length_episode", "report"),
    ],
)
def test_an_episode_with_wrong_content(
    changes: dict[str, Any], kind: str, action: str, make_datasets: ModuleType, picture: bytes, tmp_path: Path
) -> None:
    dataset = open_one(tmp_path, make_datasets, picture, changes)
    assert [e.index for e in dataset.episodes] == [0, 2]
    [fault] = [fault for fault in dataset.faults if fault.episode == 1]
    assert (fault.kind, fault.action) == (kind, action)
    assert "\n" not in fault.detail
    assert len(fault.detail) < 300


def test_rows_that_are_not_finite_are_named_and_not_used(
    make_datasets: ModuleType, picture: bytes, tmp_path: Path
) -> None:
    changes = {"steps/action": np.array([0, 1, 2, np.nan, 4, 5], "f4")}
    dataset = open_one(tmp_path, make_datasets, picture, changes)
    assert [e.bad_rows for e in dataset.episodes] == [(), (1,), ()]
    [fault] = [fault for fault in dataset.faults if fault.episode == 1]
    assert (fault.kind, fault.action, fault.frames) == ("nan_actions", "quarantine", (1, 1))


def test_pictures_of_another_size_are_reported(make_datasets: ModuleType, picture: bytes, tmp_path: Path) -> None:
    large = make_datasets.image_bytes(np.full((16, 8, 3), 128, np.uint8), "mjpeg")
    dataset = open_one(tmp_path, make_datasets, picture, {CAM: [large] * 3})
    assert len(dataset.episodes) == 3
    [fault] = [fault for fault in dataset.faults if fault.kind == "wrong_resolution"]
    assert "observation.images.cam is 16x8 where 8x8 is said" in fault.detail


def test_a_picture_that_is_cut_is_never_handed_out(make_datasets: ModuleType, picture: bytes, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    whole = make_datasets.image_bytes(noise, "mjpeg")
    dataset = open_one(tmp_path, make_datasets, picture, {CAM: [picture, picture, whole[: len(whole) // 2]]})
    episode = dataset.episodes[1]
    frames = dataset.iter_frames(episode, "observation.images.cam", [1, 2])
    assert next(frames).mean() == pytest.approx(128, abs=1)
    with pytest.raises(InputError, match=r"episode 1, camera observation\.images\.cam .*, frame 2: the picture cannot"):
        next(frames)


def test_a_file_that_changes_afterwards_is_noticed(root: Path) -> None:
    dataset = open_dataset(Source(path=str(root)))
    flip(shard(root, 0), record_starts(shard(root, 0))[1] + 100)
    dataset.read_table(dataset.episodes[0])
    with pytest.raises(InputError, match=r"episode 1 .* has changed: the checksum of its payload is wrong"):
        dataset.read_table(dataset.episodes[1])
    shard(root, 1).unlink()
    with pytest.raises(Unreachable, match=r"tfrecord.*: the file has gone since it was indexed"):
        dataset.read_table(dataset.episodes[5])


def test_a_record_beyond_the_limit_is_passed_over(
    root: Path, make_datasets: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = record_starts(shard(root, 0))
    sizes = np.diff(starts) - 16
    monkeypatch.setattr(rlds_records, "MAX_RECORD_BYTES", int(sizes.max()) - 1)
    left, faults = opened(root, make_datasets)
    assert ("record_too_large", "quarantine", int(sizes.argmax())) in faults
    assert len(left) == 6 - len(faults)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_to_a_file_of_records(data: st.DataObject, make_datasets: ModuleType, tmp_path_factory: Any) -> None:
    """Records that are handed out are those that were written, at their places; memory and time stay bounded."""
    payloads = [bytes([i]) * size for i, size in enumerate((40, 0, 17, 200))]
    content = bytearray(b"".join(map(make_datasets.tf_record, payloads)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(content)))
    folder = tmp_path_factory.mktemp("records")
    (folder / "file").write_bytes(content[: max(kept, len(content) // 2)])
    starts = dict(zip(np.cumsum([0, *(len(p) + 16 for p in payloads)]).tolist(), payloads, strict=False))
    tracemalloc.start()
    records = list(iter_records(open_store(folder), "file"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(records) <= 4
    assert [r.payload for r in records if not r.fault] == [starts[r.offset] for r in records if not r.fault]
    assert peak < 1 << 20


def test_check_info_and_stats_on_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*arguments: str) -> tuple[int, Any]:
        code = cli.main([*arguments, str(root), "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, found = answer("data", "check")
    assert (code, found["ok"], found["num_episodes_ok"]) == (0, True, 6)
    assert [fault["kind"] for fault in found["faults"]] == ["unknown_fps"]
    flip(shard(root, 0), 100)
    code, found = answer("data", "check")
    assert (code, found["ok"], found["num_episodes_ok"]) == (1, False, 5)
    code, found = answer("data", "info")
    assert (code, found["format"], found["num_episodes"]) == (0, "rlds", 5)
    code, found = answer("data", "stats")
    assert found["action"]["count"] == sum(e.length for e in open_dataset(Source(path=str(root))).episodes)
    (root / INFO).unlink()
    code, found = answer("data", "check")
    assert (code, found["faults"][0]["action"]) == (2, "refuse")
