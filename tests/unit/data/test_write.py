"""What the writer writes, LeRobot's own library reads back: every frame, state, action and task."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from vlarge.contracts import InputError
from vlarge.data.config import Source
from vlarge.data.encode import Encoding
from vlarge.data.formats import series
from vlarge.data.formats.staging import StagedFolder
from vlarge.data.formats.write import LeRobotWriter
from vlarge.data.index import open_dataset

pytestmark = pytest.mark.xdist_group("written")  # LeRobot, which reads all of it once, takes long to import

FPS = 80
TOP, WRIST = "observation.images.top", "observation.images.wrist"
CAMERAS = {TOP: (48, 64), WRIST: (32, 32)}
TASKS = ("close the drawer", "press the button, gently")
LENGTHS = (13, 1, 22, 9, 17)
ACTION_CHUNK = 4


@dataclass
class Episode:
    task: str
    states: np.ndarray
    actions: np.ndarray
    images: dict[str, np.ndarray]
    extra: dict[str, np.ndarray]


def _images(episode: int, length: int, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    frames = np.zeros((length, height, width, 3), np.uint8)
    for t in range(length):
        frames[t] = np.stack([x * 3 + t, y * 4, (x + y) * 2 + 20 * episode], -1) % 256 // 2 + 40
        frames[t, 4:20, 2 + t : 14 + t] = (220, 30 + 40 * episode, 60)
    return frames


def _episode(index: int, length: int) -> Episode:
    rng = np.random.default_rng(index)
    return Episode(
        task=TASKS[index % 2],
        states=rng.normal(size=(length, 5)).astype(np.float32),
        actions=rng.uniform(-1, 1, (length, 4)).astype(np.float32),
        images={key: _images(index, length, *size) for key, size in CAMERAS.items()},
        extra={"next.success": np.arange(length) == length - 1, "effort": rng.normal(size=(length, 2))},
    )


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    return [_episode(i, n) for i, n in enumerate(LENGTHS)]


def _writer(root: Path, **limits: Any) -> LeRobotWriter:
    return LeRobotWriter(
        root,
        fps=FPS,
        cameras=CAMERAS,
        state_names=[f"joint_{i}" for i in range(5)],
        action_names=list("xyzg"),
        robot_type="sawyer",
        **limits,
    )


def _write(root: Path, episodes: list[Episode], **limits: int) -> Path:
    with _writer(root, **limits) as writer:
        for e in episodes:
            writer.add_episode(e.task, e.states, e.actions, e.images, e.extra)
        writer.finish()
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode]) -> Path:
    folder = tmp_path_factory.mktemp("write")
    return _write(folder / "dataset", episodes, data_file_bytes=6000, video_file_bytes=4000)


def _meta(root: Path) -> list[dict]:
    files = sorted(root.glob("meta/episodes/*/*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _decode(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def _video(root: Path, meta: dict, key: str) -> tuple[Path, int]:
    place = (meta[f"videos/{key}/{name}_index"] for name in ("chunk", "file"))
    path = root / "videos" / key / "chunk-{:03d}/file-{:03d}.mp4".format(*place)
    first = meta[f"videos/{key}/from_timestamp"] * FPS
    assert first == int(first)
    return path, int(first)


LEROBOT_READS = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
root, out, cameras = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
options = dict(root=root, video_backend="pyav", return_uint8=True)
items = [dataset[i] for dataset in [LeRobotDataset("local/x", **options)] for i in range(len(dataset))]
arrays = {k: np.stack([np.asarray(item[k]) for item in items]) for k in items[0] if k != "task"}
deltas = {"action": [i / 80 for i in range(4)], cameras[0]: [-1 / 80, 0]}
chunked = LeRobotDataset("local/x", delta_timestamps=deltas, **options)
chunks = [chunked[i] for i in range(len(chunked))]
for k in ("action", "action_is_pad", cameras[0]):
    arrays["chunk/" + k] = np.stack([np.asarray(item[k]) for item in chunks])
stats = LeRobotDataset("local/x", **options).meta.stats
arrays |= {f"stats/{f}/{k}": v for f, kinds in stats.items() for k, v in kinds.items()}
np.savez(out, task=np.array([item["task"] for item in items]), **arrays)
"""


@pytest.fixture(scope="module")
def lerobot_answers(root: Path, coded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real library returns, from one process of its own with an empty cache and no network: two .npz files."""
    folder = tmp_path_factory.mktemp("lerobot")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    places = (root, folder / "items.npz", ",".join(CAMERAS), folder / "frames.npz", *(coded / n for n in ENCODINGS))
    command = [sys.executable, "-c", LEROBOT_READS + LEROBOT_FRAMES, *map(str, places)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def lerobot_items(lerobot_answers: Path) -> dict[str, np.ndarray]:
    with np.load(lerobot_answers / "items.npz") as items:
        return dict(items)


def _frames(episodes: list[Episode]) -> Iterator[tuple[int, int, int]]:
    frames = [(e, t) for e, episode in enumerate(episodes) for t in range(len(episode.states))]
    return ((row, e, t) for row, (e, t) in enumerate(frames))


def test_lerobot_reads_rows_and_tasks(lerobot_items: dict[str, np.ndarray], episodes: list[Episode]) -> None:
    assert len(lerobot_items["index"]) == sum(LENGTHS)
    for row, e, t in _frames(episodes):
        episode = episodes[e]
        np.testing.assert_array_equal(lerobot_items["observation.state"][row], episode.states[t])
        np.testing.assert_array_equal(lerobot_items["action"][row], episode.actions[t])
        np.testing.assert_allclose(lerobot_items["effort"][row], episode.extra["effort"][t], rtol=1e-6)
        assert lerobot_items["next.success"][row] == (t == LENGTHS[e] - 1)
        assert lerobot_items["task"][row] == episode.task
        numbers = [int(lerobot_items[k][row]) for k in ("index", "episode_index", "frame_index", "task_index")]
        assert numbers == [row, e, t, e % 2]
        assert lerobot_items["timestamp"][row] == np.float32(t / FPS)


@pytest.mark.parametrize("key", CAMERAS)
def test_lerobot_reads_the_same_pixels(
    lerobot_items: dict[str, np.ndarray], episodes: list[Episode], root: Path, key: str
) -> None:
    decoded = []
    for meta in _meta(root):
        path, first = _video(root, meta, key)
        decoded.extend(_decode(path)[first : first + meta["length"]])
    theirs = lerobot_items[key].transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(theirs, decoded)
    error = theirs.astype(float) - np.concatenate([e.images[key] for e in episodes])
    psnr = 10 * np.log10(255**2 / (error**2).mean(axis=(1, 2, 3)))
    assert psnr.mean() >= 40
    assert psnr.min() >= 36


@pytest.mark.parametrize("key", CAMERAS)
def test_our_reader_reads_what_lerobot_reads(
    lerobot_items: dict[str, np.ndarray], episodes: list[Episode], root: Path, key: str
) -> None:
    dataset = open_dataset(Source(path=str(root)))
    assert (dataset.faults, dataset.num_frames, dataset.tasks) == ((), sum(LENGTHS), list(TASKS))
    frames = [dataset.read_frames(e, key, list(range(e.length)), None) for e in dataset.episodes]
    np.testing.assert_array_equal(np.concatenate(frames), lerobot_items[key].transpose(0, 2, 3, 1))
    for e in dataset.episodes:
        np.testing.assert_array_equal(dataset.read_table(e).action_TA, episodes[e.index].actions)


def test_lerobot_reads_action_chunks(lerobot_items: dict[str, np.ndarray], episodes: list[Episode]) -> None:
    for row, e, t in _frames(episodes):
        actions = episodes[e].actions
        valid = actions[t : t + ACTION_CHUNK]
        np.testing.assert_array_equal(lerobot_items["chunk/action"][row][: len(valid)], valid)
        expected_pad = np.arange(ACTION_CHUNK) >= len(valid)
        np.testing.assert_array_equal(lerobot_items["chunk/action_is_pad"][row], expected_pad)
        images = lerobot_items[f"chunk/{TOP}"][row]
        np.testing.assert_array_equal(images[1], lerobot_items[TOP][row])
        np.testing.assert_array_equal(images[0], lerobot_items[TOP][row - (t > 0)])


def test_lerobot_reads_exact_stats(lerobot_items: dict[str, np.ndarray], episodes: list[Episode]) -> None:
    actions = np.concatenate([e.actions for e in episodes]).astype(np.float64)
    pixels = np.concatenate([e.images[TOP].reshape(-1, 3) for e in episodes]) / 255
    for feature, values, shape in (("action", actions, (4,)), (TOP, pixels, (3, 1, 1))):
        expected = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
        expected |= {f"q{q:02d}": np.quantile(values, q / 100, axis=0) for q in (1, 10, 50, 90, 99)}
        for name, value in expected.items():
            np.testing.assert_allclose(lerobot_items[f"stats/{feature}/{name}"], value.reshape(shape), rtol=1e-9)
        assert lerobot_items[f"stats/{feature}/count"] == sum(LENGTHS)


def test_episode_rows_say_where_everything_lies(root: Path, episodes: list[Episode]) -> None:
    rows = _meta(root)
    assert [row["episode_index"] for row in rows] == list(range(len(LENGTHS)))
    starts = np.cumsum([0, *LENGTHS])
    for e, row in enumerate(rows):
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (starts[e], starts[e + 1])
        assert (row["length"], row["tasks"]) == (LENGTHS[e], [TASKS[e % 2]])
        np.testing.assert_allclose(row["stats/action/mean"], episodes[e].actions.astype(np.float64).mean(0))
        assert np.shape(row[f"stats/{TOP}/q99"]) == (3, 1, 1)
        data = root / "data/chunk-{:03d}/file-{:03d}.parquet".format(row["data/chunk_index"], row["data/file_index"])
        assert e in pq.read_table(data, columns=["episode_index"])["episode_index"].to_pylist()
    assert len({row["data/file_index"] for row in rows}) > 1
    assert len({row[f"videos/{TOP}/file_index"] for row in rows}) > 1
    assert len({row[f"videos/{TOP}/file_index"] for row in rows}) < len(rows)


def test_each_row_group_is_an_episode(root: Path) -> None:
    groups = []
    for path in sorted(root.glob("data/*/*.parquet")):
        file = pq.ParquetFile(path)
        for i in range(file.num_row_groups):
            groups.append(set(file.read_row_group(i)["episode_index"].to_pylist()))
    assert groups == [{e} for e in range(len(LENGTHS))]


def test_videos_have_exact_times_and_a_keyframe_per_episode(root: Path) -> None:
    for key in CAMERAS:
        for meta in _meta(root):
            path, first = _video(root, meta, key)
            with av.open(str(path)) as container:
                assert container.streams.video[0].average_rate == FPS
                frames = [(frame.pts * frame.time_base, frame.key_frame) for frame in container.decode(video=0)]
            assert [time * FPS for time, _ in frames] == list(range(len(frames)))
            assert frames[first][1]
            assert meta[f"videos/{key}/to_timestamp"] == (first + meta["length"]) / FPS
            content = path.read_bytes()
            assert content.index(b"moov") < content.index(b"mdat")


def test_info(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", FPS, "sawyer")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (5, sum(LENGTHS), 2)
    assert info["features"]["action"] == {"dtype": "float32", "shape": [4], "names": ["x", "y", "z", "g"]}
    assert info["features"]["next.success"]["dtype"] == "bool"
    assert info["features"][TOP]["info"]["video.codec"] == "h264"


def test_same_episodes_give_the_same_bytes(root: Path, episodes: list[Episode], tmp_path: Path) -> None:
    again = _write(tmp_path / "again", episodes, data_file_bytes=6000, video_file_bytes=4000)
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    assert names == sorted(str(p.relative_to(again)) for p in again.rglob("*") if p.is_file())
    assert [n for n in names if (root / n).read_bytes() != (again / n).read_bytes()] == []


def test_a_video_file_ends_before_times_lose_precision(
    episodes: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "MAX_VIDEO_S", 25 / FPS)
    rows = _meta(_write(tmp_path / "dataset", episodes))
    assert [row[f"videos/{TOP}/file_index"] for row in rows] == [0, 0, 1, 2, 3]


def test_many_episodes_fill_several_metadata_files(episodes: list[Episode], tmp_path: Path) -> None:
    short = episodes[1]
    rows = _meta(_write(tmp_path / "dataset", [short] * 230, data_file_bytes=150_000))
    assert [row["episode_index"] for row in rows] == list(range(230))
    assert sorted({row["meta/episodes/file_index"] for row in rows}) == [0, 1]


def _broken(episode: Episode, name: str) -> Episode:
    broken = _episode(2, 22)
    match name:
        case "nan action":
            broken.actions[7, 2] = np.nan
        case "inf state":
            broken.states[3, 0] = np.inf
        case "short action":
            broken.actions = broken.actions[:-1]
        case "image size":
            broken.images[TOP] = broken.images[WRIST]
        case "float image":
            broken.images[TOP] = broken.images[TOP] / np.float32(255)
        case "no camera":
            del broken.images[WRIST]
        case "new column":
            broken.extra["reward"] = np.zeros(22)
        case "taken name":
            broken.extra["action"] = broken.actions
        case "empty":
            broken = _episode(2, 0)
    return broken


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan action", "episode 1: NaN or inf in action at frame 7"),
        ("inf state", r"episode 1: NaN or inf in observation.state at frame 3"),
        ("short action", r"action is float32 \[21, 4\], expected float32 \[22, 4\]"),
        ("image size", rf"{TOP} is uint8 \[22, 32, 32, 3\], expected"),
        ("float image", rf"{TOP} is float32"),
        ("no camera", f"episode 1: missing or unexpected: {WRIST}"),
        ("new column", "episode 1: missing or unexpected: reward"),
        ("taken name", "extra columns cannot be called action"),
        ("empty", "episode 1 has no frame"),
    ],
)
def test_a_bad_episode_is_refused_whole(episodes: list[Episode], tmp_path: Path, name: str, message: str) -> None:
    good, bad = episodes[0], _broken(episodes[2], name)
    with _writer(tmp_path / "dataset") as writer:
        writer.add_episode(good.task, good.states, good.actions, good.images, good.extra)
        with pytest.raises(InputError, match=message):
            writer.add_episode("another task", bad.states, bad.actions, bad.images, bad.extra)
        writer.finish()
    assert json.loads((tmp_path / "dataset/meta/info.json").read_text())["total_frames"] == LENGTHS[0]
    assert len(_decode(next((tmp_path / "dataset/videos" / TOP).rglob("*.mp4")))) == LENGTHS[0]


def test_existing_root_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/precious").write_text("data")
    with pytest.raises(InputError, match="exists; choose another folder"):
        _writer(tmp_path / "dataset")
    assert [p.name for p in tmp_path.rglob("*")] == ["dataset", "precious"]


def test_a_link_that_leads_nowhere_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "dataset").symlink_to("nowhere")
    with pytest.raises(InputError, match="exists; choose another folder"):
        _writer(tmp_path / "dataset")
    assert [p.name for p in tmp_path.iterdir()] == ["dataset"]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / ".old.partial/parts").mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", refused)
    descriptors = os.listdir("/proc/self/fd")
    for name in ("new", "old"):
        message = rf"{name} cannot be claimed for one writer: its file system has no locks \({os.strerror(code)}\)"
        with pytest.raises(InputError, match=message) as error:
            StagedFolder(tmp_path / name, resume=True)
        assert "\n" not in str(error.value)
    assert os.listdir("/proc/self/fd") == descriptors
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == [".old.partial", ".old.partial/parts"]


def test_second_writer_is_refused_and_the_first_finishes(episodes: list[Episode], tmp_path: Path) -> None:
    e = episodes[0]
    with _writer(tmp_path / "dataset") as writer:
        writer.add_episode(e.task, e.states, e.actions, e.images)
        with pytest.raises(InputError, match="being written by another"):
            _writer(tmp_path / "dataset")
        writer.finish()
    assert [p.name for p in tmp_path.iterdir()] == ["dataset"]


def test_failure_leaves_nothing(episodes: list[Episode], tmp_path: Path) -> None:
    e = episodes[0]

    def interrupted() -> None:
        with _writer(tmp_path / "dataset") as writer:
            writer.add_episode(e.task, e.states, e.actions, e.images)
            assert not (tmp_path / "dataset").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_cleared(episodes: list[Episode], tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from vlarge.data.formats.staging import StagedFolder;"
        "(StagedFolder(Path(sys.argv[1])).path / 'leftover').mkdir(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "dataset")], check=False).returncode == 9
    assert (tmp_path / ".dataset.partial/leftover").is_dir()
    root = _write(tmp_path / "dataset", episodes[:1])
    assert json.loads((root / "meta/info.json").read_text())["total_episodes"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["dataset"]
    assert sorted(p.name for p in root.iterdir()) == ["data", "meta", "videos"]


KILLED_AFTER = """
import os, sys
from pathlib import Path
from vlarge.data.formats.staging import StagedFolder
stage = StagedFolder(Path(sys.argv[1]))
for name in ("whole", "parts"):
    (stage.path / name).mkdir()
rename = Path.rename
def last(self, target):
    rename(self, target)
    os._exit(9)
Path.rename = last
stage.publish("whole")
"""


def test_what_is_left_beside_a_published_part_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_AFTER, str(tmp_path / "dataset")]
    assert subprocess.run(command, check=False).returncode == 9
    assert (tmp_path / "dataset").is_dir()
    lock = os.open(tmp_path / ".dataset.partial", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # its writer is still about to clear it
    with pytest.raises(InputError, match="exists; choose another folder"):
        StagedFolder(tmp_path / "dataset", resume=True)
    assert (tmp_path / ".dataset.partial/parts").is_dir()
    os.close(lock)
    with pytest.raises(InputError, match="exists; choose another folder"):
        StagedFolder(tmp_path / "dataset", resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["dataset"]
    (tmp_path / ".dataset.partial/parts").mkdir(parents=True)  # of a conversion that was interrupted
    with pytest.raises(InputError, match="exists; choose another folder"):
        StagedFolder(tmp_path / "dataset", resume=True)
    assert (tmp_path / ".dataset.partial/parts").is_dir()


def test_no_episode_is_refused(tmp_path: Path) -> None:
    with _writer(tmp_path / "dataset") as writer, pytest.raises(InputError, match="no episode"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


ODD_FPS = 29.97
ENCODINGS = {
    "h264": Encoding(gop=15),
    "hevc": Encoding(codec="hevc"),
    "av1": Encoding(codec="av1"),
    "av1-gop": Encoding(codec="av1", gop=12),
}
CODED_LENGTHS = (50, 31, 24)
CODED_CAMERAS = {TOP: (96, 128), WRIST: (64, 80)}

LEROBOT_FRAMES = """
out, *roots = sys.argv[4:]
arrays = {}
for root in roots:
    dataset = LeRobotDataset("local/x", root=root, video_backend="pyav", return_uint8=True)
    items = [dataset[i] for i in np.random.default_rng(0).permutation(len(dataset))]
    items.sort(key=lambda item: int(item["index"]))
    name = root.rpartition("/")[2] + "/"
    arrays |= {name + k: np.stack([np.asarray(i[k]) for i in items]) for k in items[0] if "image" in k}
    arrays[name + "task"] = np.array([item["task"] for item in items])
np.savez(out, **arrays)
"""


@pytest.fixture(scope="module")
def coded(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset per encoding, of frames that say who they are, handed over one at a time; tasks change half-way."""
    folder = tmp_path_factory.mktemp("coded")
    for name, encoding in ENCODINGS.items():
        with LeRobotWriter(
            folder / name,
            fps=ODD_FPS,
            cameras=CODED_CAMERAS,
            state_names=["a"],
            action_names=["b"],
            robot_type="x",
            encoding=encoding,
        ) as writer:
            for e, length in enumerate(CODED_LENGTHS):
                rows = np.zeros((length, 1), np.float32)
                images = {key: _painted(make_datasets, key, e, length) for key in CODED_CAMERAS}
                writer.add_episode(_tasks_of(e, length), rows, rows, images)
            writer.finish()
    return folder


def _painted(make_datasets: ModuleType, key: str, episode: int, length: int) -> Iterator[np.ndarray]:
    camera, size = list(CODED_CAMERAS).index(key), CODED_CAMERAS[key]
    return (make_datasets.paint(camera, episode, t, *size) for t in range(length))


def _tasks_of(episode: int, length: int) -> list[str]:
    return [f"task {episode + (t >= length // 2)}" for t in range(length)]


@pytest.fixture(scope="module")
def lerobot_frames(lerobot_answers: Path) -> dict[str, np.ndarray]:
    with np.load(lerobot_answers / "frames.npz") as frames:
        return dict(frames)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_frame_is_the_right_one_in_every_codec(
    coded: Path, lerobot_frames: dict[str, np.ndarray], make_datasets: ModuleType, name: str
) -> None:
    dataset = open_dataset(Source(path=str(coded / name)))
    assert (dataset.faults, dataset.fps, len(dataset.episodes)) == ((), ODD_FPS, len(CODED_LENGTHS))
    tasks = [task for e, length in enumerate(CODED_LENGTHS) for task in _tasks_of(e, length)]
    for number, key in enumerate(CODED_CAMERAS):
        assert dataset.cameras[key].codec == ENCODINGS[name].codec
        frames = np.concatenate([dataset.read_frames(e, key, range(e.length)) for e in dataset.episodes])
        own = [(number, e, t) for e, length in enumerate(CODED_LENGTHS) for t in range(length)]
        assert [make_datasets.decode_identity(frame) for frame in frames] == own
        painted = np.stack([make_datasets.paint(*who, *CODED_CAMERAS[key]) for who in own])
        psnr = 10 * np.log10(255**2 / ((frames.astype(float) - painted) ** 2).mean((1, 2, 3)))
        assert psnr.min() >= (31 if ENCODINGS[name].codec == "av1" else 36)
        theirs = lerobot_frames[f"{name}/{key}"].transpose(0, 2, 3, 1)
        assert [make_datasets.decode_identity(frame) for frame in theirs] == own
    assert lerobot_frames[f"{name}/task"].tolist() == tasks
    assert [task for e in dataset.episodes for task in dataset.read_table(e).tasks] == tasks


@pytest.mark.parametrize("name", ENCODINGS)
def test_info_names_the_encoding(coded: Path, name: str) -> None:
    info = json.loads((coded / name / "meta/info.json").read_text())
    encoding, stream = ENCODINGS[name], info["features"][TOP]["info"]
    assert info["fps"] == stream["video.fps"] == ODD_FPS
    assert (stream["video.codec"], stream["video.pix_fmt"]) == (encoding.codec, encoding.pix_fmt)
    assert (stream["video.g"], stream["video.crf"]) == (encoding.gop, encoding.quality)


def test_frames_that_come_one_at_a_time_are_checked(episodes: list[Episode], tmp_path: Path) -> None:
    e = episodes[0]

    def images(change: Callable[[list[np.ndarray]], object]) -> dict[str, Iterator[np.ndarray]]:
        frames = list(e.images[WRIST])
        change(frames)
        return {TOP: iter(e.images[TOP]), WRIST: iter(frames)}

    changes: list[tuple[Callable[[list[np.ndarray]], object], str]] = [
        (lambda frames: frames.pop(), f"episode 0: {WRIST} has 12 frames for 13 rows"),
        (
            lambda frames: frames.__setitem__(5, frames[5][:-2]),
            rf"episode 0, {WRIST}: frame 5 is uint8 \[30, 32, 3\], expected uint8 \[32, 32, 3\]",
        ),
    ]
    with _writer(tmp_path / "dataset") as writer:
        for change, message in changes:
            with pytest.raises(InputError, match=message):
                writer.add_episode(e.task, e.states, e.actions, images(change))
        writer.add_episode(e.task, e.states, e.actions, images(lambda frames: None))
        writer.finish()
    dataset = open_dataset(Source(path=str(tmp_path / "dataset")))
    assert (dataset.faults, dataset.num_frames) == ((), LENGTHS[0])
    assert sorted(p.name for p in (tmp_path / "dataset").iterdir()) == ["data", "meta", "videos"]


def test_a_task_per_frame_has_to_be_one_per_frame(episodes: list[Episode], tmp_path: Path) -> None:
    e = episodes[0]
    with _writer(tmp_path / "x") as writer, pytest.raises(InputError, match="episode 0: 2 tasks for 13 frames"):
        writer.add_episode(["a", "b"], e.states, e.actions, e.images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "vp9"}, "codec 'vp9' is unknown; use h264, hevc, av1"),
        ({"gop": 0}, "gop is 0"),
        ({"crf": 52}, r"crf is 52; h264 takes 0 \(best\) to 51"),
    ],
)
def test_an_encoding_that_does_not_exist_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Encoding(**options)


def test_a_picture_that_the_codec_cannot_hold_is_refused(episodes: list[Episode], tmp_path: Path) -> None:
    e = episodes[0]
    with (
        _writer(tmp_path / "x", encoding=Encoding(codec="av1")) as writer,
        pytest.raises(InputError, match="is 48x64; av1 needs 64 pixels: use h264"),
    ):
        writer.add_episode(e.task, e.states, e.actions, e.images)


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_no_rate_is_refused(tmp_path: Path, fps: float) -> None:
    with pytest.raises(InputError, match="fps = "):
        LeRobotWriter(
            tmp_path / "x", fps=fps, cameras=CAMERAS, state_names=["a"], action_names=["b"], robot_type="sawyer"
        )
