"""RLDS in place: every step's picture, state, action and instruction is the one that was written."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rlds_writer import STEP, image, named, numbers, tensor, text, write
from test_stream import HORIZON, ids, stream_of, take
from tfrecord_reader import read_examples

from vlarge.contracts import InputError
from vlarge.data.config import Source
from vlarge.data.formats.rlds_reader import PictureDecoder
from vlarge.data.index import Dataset, open_dataset, summary
from vlarge.data.prompts import encode_prompt
from vlarge.data.stats import dataset_stats
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.video import decode_image


@pytest.fixture(scope="module")
def bridge(shared: Path) -> Path:
    return shared / "data/bridge_rlds/bridge_dataset/1.0.0"


def test_every_step_of_bridge_is_what_an_independent_reader_finds(bridge: Path) -> None:
    dataset = open_dataset(Source(path=str(bridge)))
    examples = list(read_examples(bridge / "bridge_dataset-train.tfrecord-00000-of-00001"))
    assert [e.index for e in dataset.episodes] == list(range(25)) == list(range(len(examples)))
    assert len(dataset.camera_keys) == 4
    for episode, example in zip(dataset.episodes, examples, strict=True):
        table = dataset.read_table(episode)
        np.testing.assert_array_equal(table.state_TA, example["steps/observation/state"].reshape(10, 7))
        np.testing.assert_array_equal(table.action_TA, example["steps/action"].reshape(10, 7))
        assert table.tasks == [data.decode() for data in example["steps/language_instruction"]]
        assert episode.tasks == tuple(dict.fromkeys(table.tasks))
        for key in dataset.camera_keys:
            pictures = example[f"steps/observation/{key.removeprefix('observation.images.')}"]
            images = dataset.read_frames(episode, key, range(10))
            np.testing.assert_array_equal(images, [decode_image(data, key) for data in pictures])
    assert dataset.num_decoded == 25 * 10 * 4


def test_every_step_of_bridge_through_the_stream_is_what_an_independent_reader_finds(bridge: Path) -> None:
    dataset = open_dataset(Source(path=str(bridge)))
    examples = list(read_examples(bridge / "bridge_dataset-train.tfrecord-00000-of-00001"))
    states, actions = (
        between_bounds(np.stack([example[f"steps/{name}"].reshape(10, 7) for example in examples]))
        for name in ("observation/state", "action")
    )
    batches = take(stream_of(dataset, size=64, batch_size=25), 10)
    assert sorted(ids(batches)) == [(0, episode, step) for episode in range(25) for step in range(10)]
    for batch in batches:
        images, chunks, text = iter(batch.images_NHWC), iter(batch.actions_SA), iter(batch.text_T)
        for b, (_, episode, step) in enumerate(batch.sample_ids_B3.tolist()):
            for key in dataset.camera_keys:
                data = examples[episode][f"steps/observation/{key.removeprefix('observation.images.')}"][step]
                np.testing.assert_array_equal(next(images), decode_image(data, key))
            np.testing.assert_allclose(batch.state_BA[b], states[episode, step], atol=1e-6)
            chunk = actions[episode, step : step + HORIZON]
            assert batch.num_actions_B[b] == len(chunk)
            np.testing.assert_allclose(np.stack([next(chunks) for _ in chunk]), chunk, atol=1e-6)
            instruction = examples[episode]["steps/language_instruction"][step].decode()
            prompt = encode_prompt(ByteTokenizer(), instruction, batch.state_BA[b], 400).tolist()
            assert list(itertools.islice(text, int(batch.num_text_B[b]))) == prompt
        assert not [*images, *chunks, *text]


def between_bounds(values_ETA: np.ndarray) -> np.ndarray:
    """Each dimension from its least value as -1 to its greatest as 1; one that does not move is 0."""
    low, high = values_ETA.min((0, 1)), values_ETA.max((0, 1))
    moves = high > low
    return np.where(moves, 2 * (values_ETA - low) / np.where(moves, high - low, 1) - 1, 0)


def test_pictures_are_pil_s(bridge: Path) -> None:
    from io import BytesIO

    from PIL import Image

    example = next(read_examples(bridge / "bridge_dataset-train.tfrecord-00000-of-00001"))
    pictures = example["steps/observation/image_0"]
    decoder = PictureDecoder()
    for data in pictures:
        ours = decoder.decode(data, "")
        theirs = np.asarray(Image.open(BytesIO(data)).convert("RGB"))
        assert np.abs(ours.astype(int) - theirs).mean() < 4  # JPEG decoders differ in how they enlarge colour


def test_bridge_as_it_is_shown(bridge: Path) -> None:
    dataset = open_dataset(Source(path=str(bridge.parents[1])))  # the only version below the folder is found
    info = json.loads(json.dumps(summary(dataset)))
    assert (info["format"], info["num_episodes"], info["num_frames"], info["fps"]) == ("rlds", 25, 250, 10.0)
    camera = {"height": 64, "width": 64, "codec": "image", "present": True}
    assert info["cameras"] == {f"observation.images.image_{i}": camera for i in (1, 0, 2, 3)}  # as features.json has it
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [7]}
    assert info["features"]["language_instruction"] == {"dtype": "string", "shape": [1]}
    assert len(info["tasks"]) == 4
    assert {fault["kind"]: fault["action"] for fault in info["faults"]} == {
        "unused_split": "report",
        "unknown_fps": "report",
    }
    assert dataset_stats(dataset)["action"].count == 250


def check_identities(dataset: Dataset, md: ModuleType, cameras: list[str]) -> int:
    """Every picture, state, action and text of a generated dataset; returns how many pictures were looked at."""

    def check(job: tuple[Any, int, str]) -> int:
        episode, camera, key = job
        images = dataset.read_frames(episode, key, range(episode.length))
        assert [md.decode_identity(i) for i in images] == [(camera, episode.index, f) for f in range(episode.length)]
        return episode.length

    for e in dataset.episodes:
        frames, table = np.arange(e.length), dataset.read_table(e)
        np.testing.assert_array_equal(table.state_TA, md.state_of(e.index, frames, table.state_TA.shape[1]))
        np.testing.assert_array_equal(table.action_TA, md.action_of(e.index, frames, table.action_TA.shape[1]))
        assert table.tasks == [md.task_text(t) for t in md.task_of(e.index, frames, e.length, 3)]
    jobs = [(e, c, key) for e in dataset.episodes for c, key in enumerate(cameras)]
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(check, jobs))


def test_every_identity_of_a_generated_dataset(make_datasets: ModuleType, tmp_path: Path) -> None:
    spec = make_datasets.Spec("rlds", episodes=11, length="3:14", cameras="wrist,top,left", shards=4)
    make_datasets.make(tmp_path / "set", spec)
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    assert dataset.camera_keys == tuple(spec.keys())
    assert [e.length for e in dataset.episodes] == spec.lengths()
    assert check_identities(dataset, make_datasets, spec.keys()) == 3 * sum(spec.lengths())
    assert dataset.num_decoded == 3 * sum(spec.lengths())


def test_frames_may_be_any(make_datasets: ModuleType, tmp_path: Path) -> None:
    make_datasets.make(tmp_path / "set", make_datasets.Spec("rlds", episodes=3, length="9"))
    dataset = open_dataset(Source(path=str(tmp_path / "set"), cameras=("observation.images.wrist",)))
    episode = dataset.episodes[2]
    images = dataset.iter_frames(episode, "observation.images.wrist", [1, 5, 8])
    assert [make_datasets.decode_identity(i) for i in images] == [(1, 2, 1), (1, 2, 5), (1, 2, 8)]
    assert dataset.starts_afresh(episode, dataset.camera_keys, np.array([1, 5, 8])).all()
    with pytest.raises(InputError, match=r"camera observation\.images\.top"):
        dataset.read_frames(episode, "observation.images.top", [0])


def kinds(dataset: Dataset) -> set[str]:
    return {fault.kind for fault in dataset.faults}


def test_pictures_of_any_kind_become_rgb(make_datasets: ModuleType, tmp_path: Path) -> None:
    from io import BytesIO

    from PIL import Image

    rgb = np.random.default_rng(0).integers(0, 256, (4, 12, 16, 4), np.uint8)

    def encoded(array: np.ndarray, kind: str, **options: Any) -> bytes:
        Image.fromarray(array).save(buffer := BytesIO(), kind, **options)
        return buffer.getvalue()

    observation = {
        "state": tensor("float32", 3),
        "rgb": image(12, 16, 3),
        "rgba": image(12, 16, 4),
        "grey": image(12, 16, 1),
        "jpeg": image(12, 16, 1),
        "depth": image(12, 16, 1, dtype="uint16"),
    }
    pictures = {
        "rgb": [encoded(i[..., :3], "PNG") for i in rgb],
        "rgba": [encoded(i, "PNG") for i in rgb],
        "grey": [encoded(i[..., 0], "PNG") for i in rgb],
        "jpeg": [encoded(i[..., 0], "JPEG", quality=100) for i in rgb],
        "depth": [encoded(i[..., 0].astype(np.uint16), "PNG") for i in rgb],
    }
    episode = numbers(4) | {f"steps/observation/{name}": data for name, data in pictures.items()}
    write(tmp_path, make_datasets, STEP | {"observation": named(observation)}, [episode])
    dataset = open_dataset(Source(path=str(tmp_path)))
    images = {key[19:]: dataset.read_frames(dataset.episodes[0], key, range(4)) for key in dataset.camera_keys}
    assert sorted(images) == ["grey", "jpeg", "rgb", "rgba"]  # a depth map is another kind of data
    assert [f.detail.split()[0] for f in dataset.faults if f.kind == "depth_camera"] == ["observation.images.depth"]
    assert dataset.features["observation.images.grey"]["shape"] == [12, 16, 3]
    np.testing.assert_array_equal(images["rgb"], rgb[..., :3])
    np.testing.assert_array_equal(images["rgba"], rgb[..., :3])
    np.testing.assert_array_equal(images["grey"], rgb[..., :1].repeat(3, 3))
    assert np.abs(images["jpeg"].astype(int) - rgb[..., :1]).max() <= 4


def test_numbers_of_any_kind_may_be_state_or_action(make_datasets: ModuleType, tmp_path: Path) -> None:
    packed = np.random.default_rng(0).normal(size=(5, 2, 3)).astype("f4")
    step = {
        "action": named({"arm": tensor("float64", 2, 2), "gripper": tensor("bool")}),
        "observation": named({"joints": tensor("int32", 2), "zip": tensor("float32", 2, 3, encoding="zlib")}),
        "text": text(),
    }
    episode = {
        "steps/action/arm": np.arange(20, dtype="f4"),
        "steps/action/gripper": np.arange(5) % 2,
        "steps/observation/joints": np.arange(-5, 5),
        "steps/observation/zip": [zlib.compress(values.tobytes()) for values in packed],
        "steps/text": [b"x"] * 5,
    }
    write(tmp_path, make_datasets, step, [episode])
    with pytest.raises(
        InputError, match=r"no numeric feature 'observation\.state'; set data\.state_key to one of: "
    ) as no:
        open_dataset(Source(path=str(tmp_path)))
    assert "action.arm, action.gripper, observation.joints, observation.zip (did" in str(no.value)

    def read(state_key: str, action_key: str) -> tuple[np.ndarray, np.ndarray]:
        dataset = open_dataset(Source(path=str(tmp_path), state_key=state_key, action_key=action_key))
        table = dataset.read_table(dataset.episodes[0])
        assert (dataset.state_dim, dataset.action_dim) == (table.state_TA.shape[1], table.action_TA.shape[1])
        return table.state_TA, table.action_TA

    state_TA, action_TA = read("observation.joints", "action.arm")
    np.testing.assert_array_equal(state_TA, np.arange(-5, 5).reshape(5, 2))
    np.testing.assert_array_equal(action_TA, np.arange(20).reshape(5, 4))
    state_TA, action_TA = read("observation.zip", "action.gripper")
    np.testing.assert_array_equal(state_TA, packed.reshape(5, 6))
    np.testing.assert_array_equal(action_TA, np.array([[0, 1, 0, 1, 0]], "f4").T)


@pytest.mark.parametrize(
    ("step", "metadata", "texts", "expected"),
    [
        ({"language_instruction": text(), "other_instruction": text()}, {}, ["a", "b"], ["a", "b"]),
        ({"observation": {"natural_language_instruction": text()}}, {}, ["a", "b"], ["a", "b"]),
        ({"instruction": text()}, {}, ["a", "b"], ["a", "b"]),
        ({}, {"language_instruction": text()}, ["a"], ["a", "a"]),
        ({}, {"file_path": text()}, ["a"], ["", ""]),
        ({"language_instruction": text()}, {}, ["", "b"], ["", "b"]),
    ],
)
def test_the_instruction_is_found(
    step: dict[str, Any],
    metadata: dict[str, Any],
    texts: list[str],
    expected: list[str],
    make_datasets: ModuleType,
    tmp_path: Path,
) -> None:
    observation = {"state": tensor("float32", 3)} | step.pop("observation", {})
    names = ["episode_metadata/" + name for name in metadata]
    names += ["steps/" + name for name in step] + [f"steps/observation/{n}" for n in observation if n != "state"]
    episode = numbers(2) | {name: [t.encode() for t in texts] for name in names[:1]}
    episode |= {name: [b"wrong"] * 2 for name in names[1:]}
    write(tmp_path, make_datasets, STEP | step | {"observation": named(observation)}, [episode], metadata)
    dataset = open_dataset(Source(path=str(tmp_path)))
    assert dataset.read_table(dataset.episodes[0]).tasks == expected
    assert ("no_instruction" in kinds(dataset)) == ("" in expected)


def test_the_rate_is_what_the_episodes_say(make_datasets: ModuleType, tmp_path: Path) -> None:
    for name, rates, fps in (("same", (5.0, 5.0), 5.0), ("differ", (5.0, 6.0), 10.0)):
        episodes = [numbers(2) | {"episode_metadata/control_hz": np.array([rate], "f4")} for rate in rates]
        write(tmp_path / name, make_datasets, STEP, episodes, {"control_hz": tensor("float32")})
        dataset = open_dataset(Source(path=str(tmp_path / name)))
        assert dataset.fps == fps
        assert ("unknown_fps" in kinds(dataset)) == (name == "differ")


def test_the_last_step_is_kept(make_datasets: ModuleType, tmp_path: Path) -> None:
    padded = numbers(3)
    padded["steps/action"][-2:] = 0
    dataset = open_dataset(Source(path=str(write(tmp_path, make_datasets, STEP, [numbers(3), padded]))))
    assert [e.length for e in dataset.episodes] == [3, 3]
    [fault] = [fault for fault in dataset.faults if fault.kind == "zero_last_action"]
    assert fault.action == "report"
    assert "1 episodes (first: 1)" in fault.detail


def test_all_splits_are_read_where_none_is_called_train(make_datasets: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, make_datasets, STEP, [numbers(2)])
    (tmp_path / "set-train.tfrecord-00000-of-00001").rename(tmp_path / "set-b.tfrecord-00000-of-00001")
    (tmp_path / "set-a.tfrecord-00000-of-00001").write_bytes(
        make_datasets.tf_record(make_datasets.tf_example(numbers(5)))
    )
    splits = [{"name": "b", "shardLengths": ["1"]}, {"name": "a", "shardLengths": ["1"]}]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "set", "splits": splits}))
    dataset = open_dataset(Source(path=str(tmp_path)))
    assert [(e.index, e.length) for e in dataset.episodes] == [(0, 2), (1, 5)]
    assert "unused_split" not in kinds(dataset)


def test_one_of_several_versions_must_be_named(make_datasets: ModuleType, tmp_path: Path) -> None:
    for version in ("1.0.0", "1.1.0"):
        write(tmp_path / "set" / version, make_datasets, STEP, [numbers(2)])
    with pytest.raises(InputError, match=r"2 datasets or versions; give the path of one: set/1\.0\.0, set/1\.1\.0"):
        open_dataset(Source(path=str(tmp_path)))
    assert open_dataset(Source(path=str(tmp_path / "set/1.1.0"))).num_frames == 2


@pytest.mark.parametrize("library", ["tensorflow_datasets", "google_crc32c"])
def test_without_the_libraries_the_extra_is_named(
    library: str, make_datasets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, make_datasets, STEP, [numbers(2)])
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"needs {library}: pip install 'vlarge\[rlds\]'"):
        open_dataset(Source(path=str(tmp_path)))


def test_what_is_not_there_is_named(make_datasets: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, make_datasets, STEP | {"cam": image(4, 4, 3)}, [numbers(2)])
    for changes, message in (
        ({"cameras": ("cm",)}, "no camera 'cm' .data.cameras.; it has: cam .did you mean 'cam'"),
        ({"cameras": ("cam",)}, "'cam' .data.cameras. is declared but no record has it"),
        ({"state_key": "observation.stat"}, "did you mean 'observation.state'"),
        ({"exclude_episodes": (1,)}, "names episode 1; the dataset has 0 to 0"),
    ):
        with pytest.raises(InputError, match=message):
            open_dataset(Source(path=str(tmp_path), **changes))
    dataset = open_dataset(Source(path=str(tmp_path)))
    assert "phantom_camera" in kinds(dataset)
    assert dataset.camera_keys == ()


def test_libraries_are_imported_when_a_dataset_is_opened(make_datasets: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, make_datasets, STEP, [numbers(2)])
    code = (
        "import sys; from vlarge.data.index import open_dataset; from vlarge.data.config import Source\n"
        "heavy = {'tensorflow', 'tensorflow_datasets', 'google_crc32c'}\n"
        "assert not heavy & set(sys.modules)\n"
        f"open_dataset(Source(path={str(tmp_path)!r}))\n"
        "assert heavy & set(sys.modules) == {'tensorflow_datasets', 'google_crc32c'}\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
