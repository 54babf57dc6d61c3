"""LeRobot v3.0, v2.1 and v2.0 in place: every frame is who it should be, every fault has its episode."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlarge.contracts import InputError
from vlarge.data.check import FaultLog, Refused, Unreachable, require_trainable, usable_spans
from vlarge.data.config import Source
from vlarge.data.fetch import open_store
from vlarge.data.formats import lerobot_v3
from vlarge.data.formats.path_template import fill
from vlarge.data.index import Dataset, open_dataset

TOP, WRIST = "observation.images.top", "observation.images.wrist"
UNNAMED = "__index_level_0__"  # what pandas calls an index without a name


def wrong_frames(dataset: Dataset, make_datasets: ModuleType) -> list[tuple[str, int, int]]:
    """(camera, episode, frame) of each picture that is not the one asked for; rows are asserted."""
    wrong = []
    for episode in dataset.episodes:
        table, frames = dataset.read_table(episode), np.arange(episode.length)
        assert np.array_equal(table.state_TA, make_datasets.state_of(episode.index, frames, dataset.state_dim))
        assert np.array_equal(table.action_TA, make_datasets.action_of(episode.index, frames, dataset.action_dim))
        numbers = make_datasets.task_of(episode.index, frames, episode.length, 3)
        assert table.tasks == [make_datasets.task_text(n) for n in numbers]
        assert set(episode.tasks) == set(table.tasks)
        for camera, key in enumerate(dataset.camera_keys):
            images = dataset.read_frames(episode, key, frames.tolist())
            for frame, image in enumerate(images):
                if make_datasets.decode_identity(image) != (camera, episode.index, frame):
                    wrong.append((key, episode.index, frame))
    return wrong


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("version", ["v3.0", "v2.1", "v2.0"])
def test_every_frame_is_right(version: str, images: bool, make_datasets: ModuleType, tmp_path: Path) -> None:
    spec = make_datasets.Spec(
        version,
        episodes=6,
        length="8:16",
        codec="h264",
        gop=6,
        fps=10,
        video_episodes="3,2",
        data_episodes=2,
        images=images,
    )
    make_datasets.make(tmp_path / "set", spec)
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    assert dataset.format == f"lerobot-{version}"
    assert dataset.faults == ()
    assert [e.length for e in dataset.episodes] == spec.lengths()
    assert [c.codec for c in dataset.cameras.values()] == ["image" if images else "h264"] * 2
    if version == "v3.0":
        assert len({e.table_file for e in dataset.episodes}) == 3
        assert images or len({p.file for e in dataset.episodes for p in e.videos.values()}) == 5
    assert wrong_frames(dataset, make_datasets) == []
    assert dataset.num_decoded == 2 * dataset.num_frames


@pytest.fixture(scope="module")
def faults(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of datasets with one fault each, named for the fault."""
    folder = tmp_path_factory.mktemp("faults")
    module = importlib.import_module("dataset_faults")
    module.make_all(folder, [name for name, (base, _) in module.FAULTS.items() if base != "rlds"])
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("info_invalid_json", "info_invalid_json", r"meta/info\.json: line 15 column 19"),
        ("info_unknown_version", "info_unknown_version", r"v9\.9.*v2\.0, v2\.1, v3\.0"),
        ("videos_folder_renamed", "videos_folder_renamed", r"videos/observation.*found video/observation"),
        ("v21_broken_jsonl_line", "broken_jsonl_line", r"meta/episodes\.jsonl: line 4"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_line(name: str, kind: str, message: str, faults: Path) -> None:
    with pytest.raises(Refused, match=message) as caught:
        open_dataset(Source(path=str(faults / name)))
    assert caught.value.fault.kind == kind
    assert caught.value.fault.action == "refuse"
    assert "\n" not in str(caught.value)


def test_rows_that_are_not_finite_are_named_and_stop_nothing(faults: Path) -> None:
    dataset = open_dataset(Source(path=str(faults / "nan_actions")))
    require_trainable(dataset)
    assert {e.index: e.bad_rows for e in dataset.episodes if e.bad_rows} == {1: (3, 4, 5), 2: (0,)}
    assert [(f.episode, f.frames) for f in dataset.faults] == [(1, (3, 5)), (2, (0, 0))]
    for episode in dataset.episodes:
        table = dataset.read_table(episode)
        finite = np.isfinite(table.action_TA).all(1)
        assert np.flatnonzero(~finite).tolist() == list(episode.bad_rows)
        for first, stop in usable_spans(episode.length, episode.bad_rows, 4):
            assert finite[first : stop + 3].all()
    without = open_dataset(Source(path=str(faults / "nan_actions"), exclude_episodes=(1, 2)))
    assert without.faults == ()


def test_a_dataset_without_episodes_opens_and_does_not_train(faults: Path) -> None:
    dataset = open_dataset(Source(path=str(faults / "empty_dataset")))
    assert (dataset.num_frames, dataset.tasks, dataset.episodes) == (0, [], ())
    with pytest.raises(InputError, match="no episode to train on"):
        require_trainable(dataset)


def test_an_excluded_neighbour_still_shows_where_an_episode_belongs(faults: Path) -> None:
    config = Source(path=str(faults / "wrong_from_timestamp"), exclude_episodes=(0,))
    dataset = open_dataset(config)
    assert [e.index for e in dataset.episodes] == [2, 3, 4, 5]


@pytest.fixture(scope="module")
def small(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good datasets to damage in ways of this file's own; tests copy them."""
    folder, common = tmp_path_factory.mktemp("small"), {"episodes": 3, "length": "6:9", "codec": "h264", "fps": 10}
    for version in ("v3.0", "v2.1"):
        make_datasets.make(folder / version, make_datasets.Spec(version, **common))
    return {version: folder / version for version in ("v3.0", "v2.1")}


def copy(source: Path, target: Path, **changes: object) -> Path:
    """A copy of a dataset with these keys of info.json changed."""
    import shutil

    shutil.copytree(source, target)
    path = target / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return target


def test_a_table_that_changes_afterwards_is_named(small: dict[str, Path], tmp_path: Path) -> None:
    dataset = open_dataset(Source(path=str(copy(small["v2.1"], tmp_path / "set"))))
    tables = sorted((tmp_path / "set/data").rglob("*.parquet"))
    tables[1].write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(InputError, match=r"^data/\S+_000001\.parquet has changed: not a readable parquet file"):
        dataset.read_table(dataset.episodes[1])
    tables[2].unlink()
    with pytest.raises(Unreachable, match=f"^{tables[2]}: the file has gone since it was indexed"):
        dataset.read_table(dataset.episodes[2])


@pytest.mark.parametrize(
    "changes",
    [
        {"data_path": "/etc/{chunk_index}"},
        {"data_path": "data/../../{file_index:03d}.parquet"},
        {"data_path": "data/{file_index.__class__}.parquet"},
        {"video_path": "videos/{video_key!r}/{file_index:03d}.mp4"},
        {"video_path": "videos/{secret}/{file_index:03d}.mp4"},
        {"fps": 0},
        {"fps": "30"},
        {"features": []},
        {"features": {"action": {"dtype": "float32"}}},
        {"data_path": None},
        {"codebase_version": None},
    ],
    ids=str,
)
def test_bad_metadata_is_refused(changes: dict[str, object], small: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"meta/info\.json") as caught:
        open_dataset(Source(path=str(copy(small["v3.0"], tmp_path / "set", **changes))))
    assert "\n" not in str(caught.value)


def test_templates_are_filled_field_by_field(tmp_path: Path) -> None:
    fields = {"video_key": "observation.images.top", "episode_index": 12}
    store, file = open_store(tmp_path), "meta/info.json"
    assert fill(store, file, "video_path", "{video_key}/{episode_index:06d}.mp4", fields) == (
        "observation.images.top/000012.mp4"
    )
    assert fill(store, file, "data_path", "a{episode_index}", fields) == "a12"
    with pytest.raises(Refused, match=r"meta/info\.json: video_path gives .*, not a path inside"):
        fill(store, file, "video_path", "{video_key}.mp4", {"video_key": "../../x"})


@pytest.mark.parametrize("place", ["info", "video_info"])
@pytest.mark.parametrize("key", ["is_depth_map", "video.is_depth_map"])
def test_a_depth_map_is_reported_and_not_read_as_colour(
    key: str, place: str, small: dict[str, Path], tmp_path: Path
) -> None:
    features = json.loads((small["v3.0"] / "meta/info.json").read_text())["features"]
    features[WRIST] |= {place: {key: True}}
    root = copy(small["v3.0"], tmp_path / "set", features=features)
    dataset = open_dataset(Source(path=str(root)))
    assert list(dataset.cameras) == [TOP]
    assert [(f.kind, f.action, WRIST in f.detail) for f in dataset.faults] == [("depth_camera", "report", True)]
    with pytest.raises(InputError, match=rf"no camera '{WRIST}' \(data\.cameras\), it is a depth map; it has: {TOP}$"):
        open_dataset(Source(path=str(root), cameras=(WRIST,)))


def test_a_row_of_a_jsonl_file_must_be_whole(small: dict[str, Path], tmp_path: Path) -> None:
    root = copy(small["v2.1"], tmp_path / "set")
    (root / "meta/episodes.jsonl").write_text('{"episode_index": "0", "length": 7}\n')
    with pytest.raises(Refused, match=r"episodes\.jsonl: line 1: .*episode_index"):
        open_dataset(Source(path=str(root)))


def test_an_episode_listed_twice_is_refused(small: dict[str, Path], tmp_path: Path) -> None:
    root = copy(small["v2.1"], tmp_path / "set")
    path = root / "meta/episodes.jsonl"
    again = json.loads(path.read_text().splitlines()[1]) | {"length": 5}
    path.write_text(path.read_text() + json.dumps(again) + "\n")
    with pytest.raises(Refused, match="episode 1 is listed twice"):
        open_dataset(Source(path=str(root)))


def test_fewer_listed_episodes_than_promised_are_reported(small: dict[str, Path], tmp_path: Path) -> None:
    dataset = open_dataset(Source(path=str(copy(small["v3.0"], tmp_path / "set", total_episodes=9))))
    assert [f.kind for f in dataset.faults] == ["wrong_totals"]


def test_a_v3_video_that_skips_a_frame_is_not_guessed_at(
    small: dict[str, Path], make_datasets: ModuleType, tmp_path: Path
) -> None:
    import av

    root = copy(small["v3.0"], tmp_path / "set")
    path = next((root / "videos/observation.images.top").rglob("*.mp4"))
    images = list(make_datasets.decode(path))
    with av.open(str(path), "w") as out:
        stream = out.add_stream("h264", rate=10, options={"g": "2"})
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        for i, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = i
            if i != 4:
                out.mux(stream.encode(frame))
        out.mux(stream.encode())
    dataset = open_dataset(Source(path=str(root)))
    first = dataset.faults[0]
    assert (first.kind, first.episode) == ("irregular_video", 0)
    assert wrong_frames(dataset, make_datasets) == []


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("task_index category __index_level_0__", "right"),
        ("__index_level_0__ task category task_index", "task"),
        ("task_index number words", "right"),
        ("number task_index", None),
        ("task_index category words", None),
        ("category __index_level_0__", None),
    ],
)
def test_the_text_of_a_task_is_never_another_column(
    columns: str, expected: str | None, small: dict[str, Path], tmp_path: Path
) -> None:
    cells = {
        "task_index": [0, 1, 2],
        "number": [7, 8, 9],
        "category": ["kitchen"] * 3,
        **{
            name: [f"{'task' if name == 'task' else 'right'} {n}" for n in range(3)]
            for name in ("task", "words", UNNAMED)
        },
    }
    root = copy(small["v3.0"], tmp_path / "set")
    pq.write_table(pa.table({name: cells[name] for name in columns.split()}), root / "meta/tasks.parquet")
    log = FaultLog()
    found = lerobot_v3.read_tasks(open_store(root), log)
    assert found == ({n: f"{expected} {n}" for n in range(3)} if expected else {})
    assert [f.kind for f in log.faults()] == ([] if expected else ["bad_tasks"])


def test_a_task_without_words_is_a_task(small: dict[str, Path], tmp_path: Path) -> None:
    root = copy(small["v2.1"], tmp_path / "set")
    (root / "meta/tasks.jsonl").write_text("".join(f'{{"task_index": {n}, "task": ""}}\n' for n in range(3)))
    episodes = (root / "meta/episodes.jsonl").read_text().splitlines()
    (root / "meta/episodes.jsonl").write_text(
        "".join(f"{json.dumps(json.loads(e) | {'tasks': []})}\n" for e in episodes)
    )
    dataset = open_dataset(Source(path=str(root)))
    assert [set(dataset.read_table(e).tasks) for e in dataset.episodes] == [{""}] * 3
    assert [(f.kind, f.action) for f in dataset.faults] == [("no_instruction", "report")]


def test_rows_that_name_no_known_task_fall_back_on_the_only_one(small: dict[str, Path], tmp_path: Path) -> None:
    root = copy(small["v2.1"], tmp_path / "set")
    (root / "meta/tasks.jsonl").unlink()
    lines = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    lines[0]["tasks"], lines[1]["tasks"] = ["only one"], ["one", "two"]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    dataset = open_dataset(Source(path=str(root)))
    assert dataset.read_table(dataset.episodes[0]).tasks == ["only one"] * dataset.episodes[0].length
    assert [(f.kind, f.action, f.episode) for f in dataset.faults] == [
        ("missing_tasks", "report", None),
        ("unknown_task", "quarantine", 1),
        ("unknown_task", "report", None),
    ]


def test_an_episode_loses_its_place_only_once() -> None:
    log = FaultLog()
    for kind in ("first", "second"):
        log.leave_out(3, kind, "file", "detail")
    assert [f.kind for f in log.faults()] == ["first"]
    assert log.faults(excluded=[3]) == ()


def test_nvidias_demo_dataset(shared: Path) -> None:
    dataset = open_dataset(Source(path=str(shared / "data/gr00t_pick_n_place")))
    assert [(e.index, e.length) for e in dataset.episodes] == [(0, 416), (1, 470), (2, 470), (3, 412), (4, 328)]
    assert dataset.num_frames == 2096
    assert dataset.camera_keys == ("observation.images.ego_view",)
    assert (dataset.state_dim, dataset.action_dim, dataset.fps) == (44, 44, 20.0)
    kinds = {f.kind for f in dataset.faults}
    assert {"phantom_camera", "bad_chunk_template", "splits_too_large", "shifted_timestamps"} <= kinds
    assert {f.action for f in dataset.faults} == {"report"}
    assert "valid" not in dataset.tasks
    assert [len(e.tasks) for e in dataset.episodes] == [1] * 5
    table = dataset.read_table(dataset.episodes[1])
    assert set(table.tasks) == {"pick the sweet potato from the counter and place it in the plate"}
    assert table.state_TA.dtype == np.float32
    last = dataset.read_frames(dataset.episodes[4], "observation.images.ego_view", [0, 327], size=64)
    assert last.shape == (2, 64, 64, 3)
    assert last.std() > 10


def test_a_partial_download_names_each_missing_episode(shared: Path) -> None:
    dataset = open_dataset(Source(path=str(shared / "data/g1_partial")))
    assert [(e.index, e.length) for e in dataset.episodes] == [(10, 290), (29, 221), (82, 260)]
    missing = [f.episode for f in dataset.faults]
    assert missing == [n for n in range(100) if n not in (10, 29, 82)]
    assert {(f.kind, f.action) for f in dataset.faults} == {("partial_download", "quarantine")}
    require_trainable(dataset)
