"""Datasets of 100,000 episodes and of thousands of files: opening is quick, memory and descriptors stay bounded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_stream import feed_of

from vlarge.data.config import Source
from vlarge.data.index import open_dataset
from vlarge.data.service.plan import Node

CAMERA = "observation.images.top"
FRAMES = 2  # of an episode

OPEN = """
import json, os, sys, time
import pyarrow.parquet, av
from vlarge.data import index, index_cache
from vlarge.data.config import Source

def memory():
    lines = open("/proc/self/status").read().splitlines()
    return {l.split(":")[0]: int(l.split()[1]) / 1024 for l in lines if l.startswith(("VmRSS", "RssAnon"))}

before = memory()
start_s = time.perf_counter()
dataset = index.open_dataset(Source(path=sys.argv[1]), sys.argv[2])
open_s = time.perf_counter() - start_s
opened = memory()
frames, tasks = dataset.num_frames, len(dataset.tasks)
step = max(1, len(dataset.episodes) // 2000)
for episode in dataset.episodes[::step]:
    assert dataset.read_frames(episode, dataset.camera_keys[0], range(episode.length)).shape[0] == episode.length
    table = dataset.read_table(episode)
    assert (table.state_TA[:, 0] == episode.index).all()
used = memory()
print(json.dumps({
    "episodes": len(dataset.episodes), "frames": frames, "tasks": tasks, "faults": len(dataset.faults),
    "open_s": round(open_s, 3),
    "open_rss_mb": opened["VmRSS"] - before["VmRSS"],
    "open_anon_mb": opened["RssAnon"] - before["RssAnon"],
    "used_rss_mb": used["VmRSS"] - before["VmRSS"],
    "descriptors": len(os.listdir("/proc/self/fd")),
}))
"""


def answers(root: Path, index_dir: Path, num_processes: int = 1) -> list[dict[str, float]]:
    """What processes that open and read the dataset at the same time measure of themselves."""
    command = [sys.executable, "-c", OPEN, str(root), str(index_dir)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(num_processes)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * num_processes
    return [json.loads(output) for output in outputs]


def write_large(root: Path, num_episodes: int, num_files: int) -> None:
    """A v3.0 dataset of very short episodes in a few files. Its videos are one file, several times."""
    per_file = num_episodes // num_files
    features = {
        CAMERA: {"dtype": "video", "shape": [16, 16, 3], "names": None},
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
    }
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "features": features,
        "total_episodes": num_episodes,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000", f"videos/{CAMERA}/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    tasks = {"task_index": pa.array(range(50), pa.int64()), "task": pa.array([f"do thing {i}" for i in range(50)])}
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    for file in range(num_files):
        episodes = np.arange(file * per_file, (file + 1) * per_file)
        _write_episodes(root, file, episodes)
        _write_rows(root, file, episodes)
        video = root / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4"
        first = video.with_name("file-000.mp4")
        shutil.copy(first, video) if file else write_video(first, per_file * FRAMES)


def _write_episodes(root: Path, file: int, episodes: np.ndarray) -> None:
    start_s = (episodes - episodes[0]) * FRAMES / 10
    where = {"chunk_index": np.zeros_like(episodes), "file_index": np.full_like(episodes, file)}
    columns = {
        "episode_index": episodes,
        "tasks": [[f"do thing {e % 50}"] for e in episodes],
        "length": np.full_like(episodes, FRAMES),
        **{f"data/{name}": values for name, values in where.items()},
        **{f"videos/{CAMERA}/{name}": values for name, values in where.items()},
        f"videos/{CAMERA}/from_timestamp": start_s,
        f"videos/{CAMERA}/to_timestamp": start_s + FRAMES / 10,
    }
    pq.write_table(pa.table(columns), root / f"meta/episodes/chunk-000/file-{file:03d}.parquet")


def _write_rows(root: Path, file: int, episodes: np.ndarray) -> None:
    episode, frame = np.repeat(episodes, FRAMES), np.tile(np.arange(FRAMES), len(episodes))
    state = np.stack([episode, frame], 1).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(state.ravel()), 2)
    columns = {
        "observation.state": vectors,
        "action": vectors,
        "episode_index": episode,
        "frame_index": frame,
        "task_index": episode % 50,
        "timestamp": (frame / 10).astype(np.float32),
    }
    pq.write_table(pa.table(columns), root / f"data/chunk-000/file-{file:03d}.parquet")


def write_video(path: Path, num_frames: int) -> None:
    with av.open(str(path), "w") as out:
        stream = out.add_stream("h264", rate=10, options={"g": "2", "preset": "ultrafast", "bf": "0"})
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        image = np.zeros((16, 16, 3), np.uint8)
        for number in range(num_frames):
            image[:] = number % 251
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


@pytest.mark.long
def test_a_hundred_thousand_episodes_open_within_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "set"
    write_large(root, 100_000, 5)
    whole = [*answers(root, tmp_path / "index"), *answers(root, tmp_path / "index", num_processes=3)]
    for file in range(1, 5):
        (root / f"data/chunk-000/file-{file:03d}.parquet").unlink()
    partial = [*answers(root, tmp_path / "index"), *answers(root, tmp_path / "index")]
    with capsys.disabled():
        print("\nbuilt and opened, whole:", *whole, "built and opened, partial:", *partial, sep="\n")
    for found in whole[1:]:
        assert (found["episodes"], found["frames"], found["tasks"], found["faults"]) == (100_000, 200_000, 50, 1)
    assert (partial[1]["episodes"], partial[1]["faults"]) == (20_000, 80_001)
    for found in (*whole[1:], partial[1]):
        assert found["open_s"] < 1
        assert found["open_rss_mb"] < 200


FIRST_BATCH = """
import sys, time
from vlarge.data.service.client import ServiceProcess, stream_from
from vlarge.data.service.feed import Feed

feed = Feed.from_json(open(sys.argv[1]).read())
start_s = time.perf_counter()
process = ServiceProcess(feed)
streams = [stream_from(process.address, rank, feed.image_shape, process if rank == 0 else None) for rank in range(8)]
batches = [next(stream)[0] for stream in streams]
print(time.perf_counter() - start_s)
assert [batch.num_samples for batch in batches] == [8] * 8
for stream in streams:
    stream.close()
"""


@pytest.mark.long
def test_eight_ranks_have_their_first_batch_of_a_hundred_thousand_episodes_within_five_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_large(tmp_path / "set", 100_000, 5)
    dataset = open_dataset(Source(path=str(tmp_path / "set")), str(tmp_path / "index"))
    changes = {"size": 32, "batch_size": 64, "clip_frames": 16, "window_samples": 4096, "num_threads": 0}
    feed = feed_of(dataset, node=Node(0, 1, 8), index_dir=str(tmp_path / "index"), **changes)
    (tmp_path / "feed.json").write_text(feed.to_json())
    command = [sys.executable, "-c", FIRST_BATCH, str(tmp_path / "feed.json")]
    took_s = float(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout)
    with capsys.disabled():
        print(f"\nfirst batch of 8 ranks after {took_s:.2f} s")
    assert took_s < 5


@pytest.mark.long
def test_thousands_of_small_files_keep_memory_and_descriptors_bounded(
    make_datasets: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    spec = make_datasets.Spec("v2.1", episodes=4, length="8", size="48x64", codec="h264", fps=10, cameras="top")
    make_datasets.make(small, spec)
    found = {}
    for num_episodes in (200, 2000):
        root = repeat_v21(small, tmp_path / f"set{num_episodes}", num_episodes)
        answers(root, tmp_path / "index")
        found[num_episodes] = answers(root, tmp_path / "index")[0]
    with capsys.disabled():
        print(f"\n{found}")
    few, many = found[200], found[2000]
    assert many["episodes"] == 2000
    assert many["used_rss_mb"] < few["used_rss_mb"] + 30
    assert many["descriptors"] <= few["descriptors"] + 2


def repeat_v21(small: Path, root: Path, num_episodes: int) -> Path:
    """A v2.1 dataset whose episodes are those of a small one, over and over, each in files of its own."""
    (root / "meta").mkdir(parents=True)
    for path in (small / "meta").iterdir():
        shutil.copy(path, root / "meta")
    lines = [json.loads(line) for line in (small / "meta/episodes.jsonl").read_text().splitlines()]
    rows = [lines[i % len(lines)] | {"episode_index": i} for i in range(num_episodes)]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in range(num_episodes):
        source = number % len(lines)
        for path in small.rglob(f"episode_{source:06d}.*"):
            folder = root / path.parent.relative_to(small)
            target = folder.parent / f"chunk-{number // 1000:03d}"
            if path.suffix == ".mp4":
                target = folder.parents[1] / f"chunk-{number // 1000:03d}" / folder.name
            target.mkdir(parents=True, exist_ok=True)
            target /= f"episode_{number:06d}{path.suffix}"
            if path.suffix == ".mp4":
                os.link(path, target)
            else:
                _renumber(path, target, number)
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": num_episodes}))
    return root


def _renumber(source: Path, target: Path, number: int) -> None:
    table = pq.read_table(source)
    episode = pa.array(np.full(len(table), number), pa.int64())
    table = table.set_column(table.column_names.index("episode_index"), "episode_index", episode)
    state = np.array(table["observation.state"].to_pylist(), np.float32)
    state[:, 0] = number
    column = pa.FixedSizeListArray.from_arrays(pa.array(state.ravel()), state.shape[1])
    pq.write_table(table.set_column(table.column_names.index("observation.state"), "observation.state", column), target)
