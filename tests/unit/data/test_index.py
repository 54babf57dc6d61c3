"""Opening a dataset: what a recipe may ask for, what `data info` prints, what decides the revision."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vlarge.contracts import InputError
from vlarge.data import index
from vlarge.data.cache import ByteCache
from vlarge.data.config import DataConfig, Source
from vlarge.data.fetch import Patience, Store, open_store
from vlarge.data.index import open_dataset, require_dataset, summary
from vlarge.data.mp4 import read_video_file

TOP, WRIST = "observation.images.top", "observation.images.wrist"


@pytest.fixture(scope="module")
def root(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "set"
    spec = make_datasets.Spec(
        "v3.0", episodes=4, length="8:12", size="48x64", codec="h264", fps=10, video_episodes="2,3"
    )
    make_datasets.make(path, spec)
    return path


def test_no_such_path_and_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_dataset(Source(path=str(tmp_path / "nothing")))
    with pytest.raises(InputError, match=r"not a dataset: it has no meta/info\.json"):
        open_dataset(Source(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cameras": ("observation.images.tip",)}, "did you mean 'observation.images.top'"),
        ({"state_key": "observation.stat"}, "did you mean 'observation.state'"),
        ({"action_key": "actions"}, "did you mean 'action'"),
        ({"exclude_episodes": (2, 9)}, "names episode 9; the dataset has 0 to 3"),
    ],
)
def test_what_the_dataset_does_not_have_is_named(changes: dict[str, tuple[str]], message: str, root: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_dataset(Source(path=str(root), **changes))
    assert "\n" not in str(caught.value)


def test_a_camera_without_files_cannot_be_asked_for(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "set")
    shutil.rmtree(tmp_path / "set/videos" / WRIST)
    assert open_dataset(Source(path=str(tmp_path / "set"))).camera_keys == (TOP,)
    with pytest.raises(InputError, match="has no files"):
        open_dataset(Source(path=str(tmp_path / "set"), cameras=(TOP, WRIST)))


def test_one_camera_is_used_when_one_is_named(root: Path, make_datasets: ModuleType) -> None:
    dataset = open_dataset(Source(path=str(root), cameras=(WRIST,)))
    assert dataset.camera_keys == (WRIST,)
    assert dataset.cameras[TOP].present
    image = dataset.read_frames(dataset.episodes[2], WRIST, [5])[0]
    assert make_datasets.decode_identity(image) == (1, 2, 5)


def test_excluded_episodes_keep_the_others_numbers(root: Path) -> None:
    dataset = open_dataset(Source(path=str(root), exclude_episodes=(1,)))
    assert [e.index for e in dataset.episodes] == [0, 2, 3]
    assert dataset.read_table(dataset.episodes[1]).state_TA[0, 0] == 2


def test_summary_is_what_data_info_prints(root: Path, make_datasets: ModuleType) -> None:
    dataset = open_dataset(Source(path=str(root)))
    info = json.loads(json.dumps(summary(dataset)))
    assert info["format"] == "lerobot-v3.0"
    assert (info["num_episodes"], info["num_frames"], info["fps"]) == (4, dataset.num_frames, 10.0)
    camera = {"height": 48, "width": 64, "codec": "h264", "present": True}
    assert info["cameras"] == {TOP: camera, WRIST: camera}
    assert info["features"]["action"] == {"dtype": "float32", "shape": [7]}
    assert info["features"][TOP] == {"dtype": "video", "shape": [48, 64, 3]}
    assert info["tasks"] == [make_datasets.task_text(i) for i in range(3)]
    assert info["faults"] == []


def test_frames_are_resized_as_they_are_decoded(root: Path) -> None:
    dataset = open_dataset(Source(path=str(root)))
    assert dataset.read_frames(dataset.episodes[0], TOP, [0, 3]).shape == (2, 48, 64, 3)
    assert dataset.read_frames(dataset.episodes[0], TOP, [0, 3], size=32).shape == (2, 32, 32, 3)
    assert dataset.read_frames(dataset.episodes[0], TOP, [], size=32).shape == (0, 32, 32, 3)


def test_only_ascending_frames_of_the_episode_are_read(root: Path) -> None:
    dataset = open_dataset(Source(path=str(root)))
    episode = dataset.episodes[0]
    with pytest.raises(ValueError, match="ascend"):
        dataset.read_frames(episode, TOP, [3, 3])
    with pytest.raises(IndexError):  # the next frame of the file is another episode's
        dataset.read_frames(episode, TOP, [episode.length])


def test_a_file_damaged_after_opening_is_named(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "set")
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    part = dataset.episodes[1].videos[TOP]
    video = tmp_path / "set" / part.file
    data, table = bytearray(video.read_bytes()), read_video_file(dataset.store, part.file)
    start, size = int(table.offset_P[part.first_frame]), int(table.size_P[part.first_frame])
    data[start + 40 : start + size] = bytes(size - 40)
    video.write_bytes(data)
    with pytest.raises(InputError, match=rf"episode 1, camera {TOP}.*file-000\.mp4.*frame \d+"):
        dataset.read_frames(dataset.episodes[1], TOP, list(range(dataset.episodes[1].length)))


def test_threads_may_share_a_dataset(root: Path, make_datasets: ModuleType) -> None:
    dataset = open_dataset(Source(path=str(root)))

    def identities(i: int) -> set[tuple[int, int, int]]:
        episode = dataset.episodes[i % 4]
        images = dataset.read_frames(episode, TOP, range(episode.length))
        return {make_datasets.decode_identity(image) for image in images}

    with ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(identities, range(16))):
            episode = dataset.episodes[i % 4]
            assert found == {(0, episode.index, frame) for frame in range(episode.length)}


def test_the_revision_is_the_contents_and_the_choice(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "set")
    first = open_dataset(Source(path=str(root))).revision
    assert open_dataset(Source(path=str(tmp_path / "set"))).revision == first  # a copy is the same dataset
    assert open_dataset(Source(path=str(root), exclude_episodes=(3,))).revision != first
    info = tmp_path / "set/meta/info.json"
    info.write_text(info.read_text().replace("bot", "arm") + " ")
    assert open_dataset(Source(path=str(tmp_path / "set"))).revision != first


def test_every_opening_is_as_patient_as_asked_for(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, asked = tmp_path / "list.json", []
    listed.write_text(json.dumps({"revision": open_dataset(Source(path=str(root))).revision, "episodes": {"1": "why"}}))

    def noting(address: str, patience: Patience, *rest: Any) -> Store:
        asked.append(patience.deadline_s)
        return open_store(address, patience, *rest)

    monkeypatch.setattr(index, "open_store", noting)
    dataset = open_dataset(Source(path=str(root), quarantine=str(listed)), str(tmp_path / "index"), remote_deadline_s=7)
    assert [e.index for e in dataset.episodes] == [0, 2, 3]
    assert asked == [7, 7]


def test_leaving_out_afterwards_is_excluding(root: Path) -> None:
    left = open_dataset(Source(path=str(root))).without({1, 3})
    excluded = open_dataset(Source(path=str(root), exclude_episodes=(1, 3)))
    assert left.episodes == excluded.episodes
    assert (left.revision, left.lengths.tolist()) == (excluded.revision, excluded.lengths.tolist())
    assert (left.tasks, left.faults, left.camera_keys) == (excluded.tasks, excluded.faults, excluded.camera_keys)
    assert left.read_table(left.episodes[1]).state_TA[0, 0] == 2


class _Blob:
    def __init__(self, size: int) -> None:
        self.num_bytes = size


def test_the_cache_keeps_to_its_bytes_and_to_what_was_used_last() -> None:
    loaded: list[str] = []

    def load(key: str) -> _Blob:
        loaded.append(key)
        return _Blob(40)

    cache = ByteCache(load, 100)
    for key in "abacab":
        cache.get(key)
        assert cache.num_bytes <= 100
    assert loaded == ["a", "b", "c", "b"]


def test_a_value_larger_than_the_cache_is_loaded_once_while_it_is_asked_for() -> None:
    loaded: list[str] = []
    cache = ByteCache(lambda key: loaded.append(key) or _Blob(400), 100)
    for key in "aaabbb":
        cache.get(key)
    assert (loaded, cache.num_bytes) == (["a", "b"], 400)


def test_an_object_store_is_not_listed_only_to_see_whether_it_holds_a_dataset() -> None:
    require_dataset(DataConfig(path="s3://no-such-bucket/nothing", remote_deadline_s=0))
    with pytest.raises(InputError, match="does not exist"):
        require_dataset(DataConfig(path="/no-such-folder"))
