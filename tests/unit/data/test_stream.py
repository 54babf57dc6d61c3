"""The training stream: the right frame, each once, in the order that is promised, whatever the ranks and the start."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError, PackedBatch
from vlarge.data.bench import decoded_per_used
from vlarge.data.check import Unreachable
from vlarge.data.config import Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.manifest import Episode, EpisodeTable
from vlarge.data.prompts import encode_prompt
from vlarge.data.service import node
from vlarge.data.service.decoder import Crashed
from vlarge.data.service.feed import Feed
from vlarge.data.service.plan import Node
from vlarge.data.service.stream import Limits, Stream, stream_here
from vlarge.data.stats import FeatureStats, dataset_stats
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.data.transforms.resize import PADDINGS

HORIZON = 5


def preparation(dataset: Any, size: int = 96) -> Preparation:
    unit = {k: np.array([v]) for k, v in (("min", -1), ("max", 1), ("mean", 0), ("std", 1), ("q01", -1), ("q99", 1))}
    stats = dataset_stats(dataset) if isinstance(dataset, Dataset) else {}
    state, action = (Normalizer("min_max", stats.get(k, FeatureStats(**unit, count=2))) for k in KEYS)
    return Preparation(size, HORIZON, dataset.camera_keys, ByteTokenizer(), state, action, 400)


KEYS = ("observation.state", "action")


def feed_of(*datasets: Any, size: int = 96, **changes: Any) -> Feed:
    preparations = tuple(preparation(d, size).to_json() for d in datasets)
    sources = tuple(Source(path=str(d.root)) for d in datasets)
    settings = {"seed": 0, "batch_size": 7, "clip_frames": 4, "window_samples": 20, "num_threads": 1}
    return Feed(sources=sources, preparations=preparations, image_shape=(size, size), **{**settings, **changes})


def stream_of(
    *datasets: Any, limits: Limits | None = None, tell: Callable[[str], None] = print, **changes: Any
) -> Stream:
    return stream_here(feed_of(*datasets, **changes), datasets, limits or Limits(), tell)


def expected_ids(feed: Feed, datasets: Sequence[Any], start: int, stop: int) -> list[tuple[int, int, int]]:
    """(dataset, episode, frame) at positions [start, stop), from the order alone."""
    plan = feed.plan(datasets)
    rows = np.concatenate([plan.samples(s) for s in range(start // feed.batch_size, -(-stop // feed.batch_size))])
    return [(d, datasets[d].episodes[e].index, f) for d, e, f in rows.tolist()][: stop - start]


def take(stream: Stream, num_steps: int) -> list[PackedBatch]:
    """Batches of so many steps, copied: a stream's own memory is used again."""
    try:
        steps = itertools.islice(stream, num_steps)
        return [replace(b, images_NHWC=b.images_NHWC.copy()) for step in steps for b in step]
    finally:
        stream.close()


def ids(batches: Sequence[PackedBatch]) -> list[tuple[int, int, int]]:
    return [(d, e, f) for b in batches for d, e, f in b.sample_ids_B3.tolist()]


# ---- on real files


def files() -> list[Any]:
    """Codec, distance of key frames (250 is more than a file has), format. The usual ones always, others when long."""
    usual = {("h264", 15, "v3.0"), ("libsvtav1", 2, "v3.0"), ("hevc", 250, "v3.0"), ("h264", 250, "v2.1")}
    usual |= {("libsvtav1", 15, "v2.1"), ("hevc", 2, "v2.0")}
    every = itertools.product(("h264", "hevc", "libsvtav1"), (2, 15, 250), ("v3.0", "v2.1", "v2.0"))
    return [pytest.param(*each, marks=() if each in usual else pytest.mark.long) for each in every]


@pytest.mark.parametrize(("codec", "gop", "version"), files())
def test_every_frame_through_the_stream_is_right(
    codec: str, gop: int, version: str, make_datasets: ModuleType, tmp_path: Path
) -> None:
    spec = make_datasets.Spec(
        version, episodes=4, length="14:22", codec=codec, gop=gop, video_episodes="2,3", data_episodes=2
    )
    make_datasets.make(tmp_path / "set", spec)
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    if version == "v3.0":
        assert [len({e.videos[k].file for e in dataset.episodes}) for k in dataset.camera_keys] == [2, 2]
    check_two_epochs(dataset, make_datasets)


def test_every_frame_of_records_through_the_stream_is_right(make_datasets: ModuleType, tmp_path: Path) -> None:
    make_datasets.make(tmp_path / "set", make_datasets.Spec("rlds", episodes=4, length="14:22", shards=2))
    check_two_epochs(open_dataset(Source(path=str(tmp_path / "set"))), make_datasets)


def check_two_epochs(dataset: Dataset, make_datasets: ModuleType) -> None:
    prepared = preparation(dataset)
    n = dataset.num_frames
    batches = take(stream_of(dataset), 2 * n // 7 + 1)
    for batch in batches:
        check_batch(batch, dataset, prepared, make_datasets)
    found = ids(batches)
    everything = sorted((0, e.index, f) for e in dataset.episodes for f in range(e.length))
    assert sorted(expected_ids(feed_of(dataset), [dataset], 0, n)) == everything
    assert sorted(found) == sorted(expected_ids(feed_of(dataset), [dataset], 0, len(found)))


def check_batch(batch: PackedBatch, dataset: Dataset, prepared: Preparation, make_datasets: ModuleType) -> None:
    """Pixels, state, actions and prompt of every sample are those of the frame that its id names."""
    images, actions, text = iter(batch.images_NHWC), iter(batch.actions_SA), iter(batch.text_T)
    lengths = {e.index: e.length for e in dataset.episodes}
    for b, (_, episode, frame) in enumerate(batch.sample_ids_B3.tolist()):
        for camera in range(len(prepared.cameras)):
            picture = next(images)[12:84]  # 96x128 in 96x96: padded above and below
            assert make_datasets.decode_identity(picture) == (camera, episode, frame)
        chunk = range(frame, min(frame + HORIZON, lengths[episode]))
        assert batch.num_actions_B[b] == len(chunk)
        raw = prepared.actions_inverse(np.stack([next(actions) for _ in chunk]))
        assert np.allclose(raw, make_datasets.action_of(episode, np.array(chunk), 7), atol=1e-3)
        state = prepared.state_normalizer.inverse(batch.state_BA[b])
        assert np.allclose(state, make_datasets.state_of(episode, frame, 8), atol=1e-3)
        task = make_datasets.task_text(make_datasets.task_of(episode, frame, lengths[episode], 3))
        prompt = encode_prompt(prepared.tokenizer, task, batch.state_BA[b], prepared.max_text_tokens)
        assert list(itertools.islice(text, int(batch.num_text_B[b]))) == prompt.tolist()


@pytest.fixture(scope="module")
def dataset(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("stream") / "set"
    spec = make_datasets.Spec("v3.0", episodes=5, length="20:30", size="48x64", codec="h264", gop=15, fps=10)
    make_datasets.make(path, spec)
    return open_dataset(Source(path=str(path)))


def test_at_the_default_window_every_frame_is_decoded_once(dataset: Dataset) -> None:
    n = dataset.num_frames
    feed = feed_of(dataset, size=32, batch_size=n, window_samples=4096, clip_frames=16, keep_small=False)
    assert decoded_per_used(feed.plan([dataset])) <= 1.05
    with closing(stream_here(feed, [dataset])) as stream:
        for _ in range(8):
            next(stream)
        counters = stream.counters()
    assert counters["images"] == 8 * 2 * n
    epochs_begun = 8 + counters["ready_batches"] + 2  # two threads are at others
    assert 8 * 2 * n <= counters["frames_decoded"] <= 1.05 * 2 * n * epochs_begun


def test_a_resumed_stream_has_the_same_bytes(dataset: Dataset) -> None:
    whole = take(stream_of(dataset, size=32, batch_size=9), 20)
    resumed = take(stream_of(dataset, size=32, batch_size=9, start_step=13), 7)
    for one, other in zip(whole[13:], resumed, strict=True):
        for name in PackedBatch.__dataclass_fields__:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_kept_frames_need_no_decoder(dataset: Dataset, tmp_path: Path) -> None:
    plain = take(stream_of(dataset, size=32, batch_size=9), 3 * dataset.num_frames // 9)
    alone = stream_of(dataset, size=32, batch_size=9)
    for _ in range(3 * dataset.num_frames // 9):
        next(alone)
    decoded = alone.counters()["frames_decoded"]
    take(alone, 3 * dataset.num_frames // 9)
    assert alone.counters()["frames_decoded"] == decoded  # it is small, and stays in memory
    for _ in range(2):
        stream = stream_of(dataset, size=32, batch_size=9, cache_dir=str(tmp_path), cache_bytes=1 << 30)
        batches = take(stream, 3 * dataset.num_frames // 9)
        for one, other in zip(plain, batches, strict=True):
            assert np.array_equal(one.images_NHWC, other.images_NHWC)
        decoded = stream.counters()["frames_decoded"]
    assert decoded == 0


def test_pictures_are_padded_as_the_feed_says_and_kept_apart(dataset: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"size": 32, "batch_size": 9, "cache_dir": str(tmp_path), "cache_bytes": 1 << 30}
    centred, cornered, stretched = (take(stream_of(dataset, padding=name, **settings), 3) for name in PADDINGS)
    for one, other, whole in zip(centred, cornered, stretched, strict=True):
        expected = np.zeros_like(one.images_NHWC)
        expected[:, 8:] = one.images_NHWC[:, 4:28]  # they are three quarters as high as wide
        assert np.array_equal(other.images_NHWC, expected)
        assert whole.images_NHWC[:, [0, -1]].any((1, 2, 3)).all()  # no row of black above or below
        assert not np.array_equal(whole.images_NHWC, one.images_NHWC)
    again = take(stream_of(dataset, padding="corner", **settings), 3)
    assert all(np.array_equal(a.images_NHWC, b.images_NHWC) for a, b in zip(cornered, again, strict=True))


def test_frames_of_a_video_that_was_written_to_are_not_kept_ones(make_datasets: ModuleType, tmp_path: Path) -> None:
    make_datasets.make(tmp_path / "set", make_datasets.Spec("v2.1", episodes=2, length="12", size="48x64"))

    def num_decoded() -> int:
        opened = open_dataset(Source(path=str(tmp_path / "set")))
        stream = stream_of(opened, size=32, batch_size=6, cache_dir=str(tmp_path / "kept"), cache_bytes=1 << 30)
        take(stream, 4)
        return opened.num_decoded

    assert num_decoded() == 2 * 24
    assert num_decoded() == 0
    video = next((tmp_path / "set").rglob("*.mp4"))
    os.utime(video, ns=(0, 0))  # of a file that was fetched again, the size may be the same
    assert num_decoded() == 12
    assert len(list((tmp_path / "kept").rglob("*.frames"))) == 2 * 2


def test_memory_is_used_again(dataset: Dataset) -> None:
    stream = stream_of(dataset, size=32, batch_size=4, memory_bytes=1 << 20)
    for _ in range(200):
        next(stream)
    node = stream._service.node  # type: ignore[attr-defined]
    assert node.arena.num_slots * 4 * 2 * 32 * 32 * 3 <= 0.75 * (1 << 20)
    stream.close()


@pytest.mark.parametrize("cut", [200, 3])
def test_a_damaged_image_column_is_replaced(make_datasets: ModuleType, tmp_path: Path, cut: int) -> None:
    """Only reading it tells that a page of it is damaged."""
    make_datasets.make(tmp_path / "set", make_datasets.Spec("v2.1", episodes=3, length="9", images=True, cameras="top"))
    (file,) = (tmp_path / "set").glob("data/*/episode_000001.parquet")
    column = pq.ParquetFile(file).metadata.row_group(0)
    place = next(c for c in map(column.column, range(column.num_columns)) if "image" in c.path_in_schema)
    with file.open("r+b") as handle:
        handle.seek((place.dictionary_page_offset or place.data_page_offset) + 3)
        handle.write(b"\xff" * cut)
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    stream = stream_of(dataset, size=32, limits=Limits(max_bad_fraction=0.9))
    batches = take(stream, 8)
    assert {bad.episode for bad in stream.replaced} == {1}
    assert 1 not in {episode for _, episode, _ in ids(batches)}


def test_a_full_disk_ends_the_keeping_and_not_the_run(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_tries = 0

    def full(*_: object) -> int:
        nonlocal num_tries
        num_tries += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    plain = take(stream_of(dataset, size=32, batch_size=9), 12)
    monkeypatch.setattr(os, "pwrite", full)
    kept = take(stream_of(dataset, size=32, batch_size=9, cache_dir=str(tmp_path), cache_bytes=1 << 30), 12)
    assert all(np.array_equal(a.images_NHWC, b.images_NHWC) for a, b in zip(plain, kept, strict=True))
    assert num_tries == 1
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("no more frames are kept in ")
    assert told.endswith(": No space left on device")


# ---- on a dataset in memory


@dataclass
class Memory:
    """A dataset without files: pixel values, state and action say which frame it is."""

    sizes: list[int]
    before_frame: Callable[[int, int], None] = lambda episode, frame: None
    group_frames: int = 1
    root: str = "memory"
    camera_keys: tuple[str, ...] = ("observation.images.top",)
    faults: tuple[()] = ()
    state_dim: int = 1
    action_dim: int = 1
    num_decoded: int = 0
    lock: Any = field(default_factory=threading.Lock)

    @property
    def episodes(self) -> list[Episode]:
        return [Episode(100 + i, n, ("task",), "a.parquet", 0, {}) for i, n in enumerate(self.sizes)]

    @property
    def lengths(self) -> np.ndarray:
        return np.array(self.sizes, np.int64)

    @property
    def num_frames(self) -> int:
        return sum(self.sizes)

    def spans(self, action_horizon: int) -> np.ndarray:
        return np.array([(i, 0, n) for i, n in enumerate(self.sizes)], np.int64).reshape(-1, 3)

    def gop_frames(self, keys: Sequence[str]) -> int:
        return self.group_frames

    def stamp_of(self, file: str) -> str:
        return file

    def read_table(self, episode: Episode) -> EpisodeTable:
        column = np.arange(episode.length, dtype=np.float32)[:, None] / 100
        return EpisodeTable(column, column, ["task"] * episode.length)

    def starts_afresh(self, episode: Episode, keys: Sequence[str], frames: np.ndarray) -> np.ndarray:
        return np.diff(frames // self.group_frames, prepend=-1) != 0

    def fill_frames(
        self, episode: Episode, key: str, frames: Sequence[int], outs: Sequence[np.ndarray], padding: str
    ) -> None:
        for frame, out in zip(frames, outs, strict=True):
            self.before_frame(episode.index, frame)
            with self.lock:
                self.num_decoded += 1
            out[...] = frame


@pytest.mark.parametrize(("weights", "batch_size"), [((1.0, 99.0), 8), ((999.0, 1.0), 8), ((1.0, 3.0), 90)])
def test_a_mixture_of_any_weights_flows(weights: tuple[float, float], batch_size: int) -> None:
    """In little memory: one dataset's window reaches over more steps than there is room for."""
    memories = [Memory([60] * 5), Memory([50] * 4)]
    image_bytes = 4 * 4 * 3
    feed = feed_of(
        *memories, size=4, batch_size=batch_size, weights=weights, memory_bytes=600 * image_bytes, window_samples=400,
        clip_frames=16, keep_small=False, num_threads=3,
    )  # fmt: skip
    stream = stream_here(feed, memories, Limits(stall_s=20), tell=pytest.fail)  # type: ignore[arg-type]
    batches = take(stream, 4000 // batch_size)
    found = ids(batches)
    assert sorted(found) == sorted(expected_ids(feed, memories, 0, len(found)))


def test_memory_for_too_few_batches_is_refused_with_what_would_do() -> None:
    memory = Memory([60] * 5)
    feed = feed_of(memory, size=4, batch_size=200, memory_bytes=600 * 4 * 4 * 3, keep_small=False)
    told = r"data\.memory_bytes = 28800 is too little: 4 global batches .* give (\d+)"
    with pytest.raises(InputError, match=told) as refusal:
        feed.open([memory])  # type: ignore[list-item]
    enough = int(str(refusal.value).split()[-1])
    for memory_bytes in (enough, enough + 20000):
        stream = stream_here(replace(feed, memory_bytes=memory_bytes), [memory])  # type: ignore[list-item]
        assert len(ids(take(stream, 5))) == 1000


def test_what_is_needed_first_is_read_first() -> None:
    memories = [Memory([60] * 5), Memory([50] * 4)]
    feed = feed_of(*memories, size=4, batch_size=8, weights=(1.0, 9.0), window_samples=400)
    clips = itertools.islice(feed.plan(memories).clips(0), 200)  # type: ignore[arg-type]
    steps = [min(place.step for place in clip.places) for clip in clips]
    assert steps == sorted(steps)


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(sum)


@given(
    datasets=st.lists(SIZES, min_size=1, max_size=3),
    cameras=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    shuffle=st.tuples(st.integers(1, 5), st.integers(0, 20)),
    group_frames=st.integers(1, 7),
    world=st.sampled_from([1, 2, 3, 4, 8]),
    workers=st.sampled_from([1, 3]),
    uneven=st.sampled_from([1, 7]),
    ranks_per_node=st.sampled_from([1, 2]),
    batch_size=st.integers(8, 20),
    budget=st.sampled_from([0, 60, 200]),
    micro=st.sampled_from([1, 1, 2, 6]),
    start_step=st.integers(0, 9),
)
@settings(max_examples=5, deadline=None)
def test_a_global_batch_is_the_same_on_any_ranks_and_workers_from_any_start(
    datasets: list[list[int]],
    cameras: list[int],
    shuffle: tuple[int, int],
    group_frames: int,
    world: int,
    workers: int,
    uneven: int,
    ranks_per_node: int,
    batch_size: int,
    budget: int,
    micro: int,
    start_step: int,
) -> None:
    keys = ("observation.images.top", "observation.images.wrist")
    memories = [
        Memory(sizes, group_frames=group_frames, camera_keys=keys[:count])
        for sizes, count in zip(datasets, cameras, strict=False)
    ]
    ranks_per_node = 1 if world % ranks_per_node else ranks_per_node
    num_nodes = world // ranks_per_node
    settings = {
        "size": 4, "batch_size": batch_size, "clip_frames": shuffle[0], "window_samples": shuffle[1],
        "num_threads": workers, "budget_tokens": budget, "micro_batches": micro,
        "weights": tuple(1.0 + uneven * k for k in range(len(memories))),
    }  # fmt: skip
    feed = replace(feed_of(*memories, **settings), start_step=start_step)
    nodes = [replace(feed, node=Node(n, num_nodes, ranks_per_node)).open(memories) for n in range(num_nodes)]  # type: ignore[arg-type]
    try:
        for step in range(start_step, start_step + 4):
            readies = [node.take(rank, 30) for node in nodes for rank in range(ranks_per_node)]
            batches = [batch for ready in readies if ready for batch in ready.batches]
            wanted = expected_ids(feed, memories, step * batch_size, (step + 1) * batch_size)
            assert sorted(ids(batches)) == sorted(wanted)
            (num_micro,) = {len(ready.batches) for ready in readies if ready}  # equally many micro-batches
            assert num_micro % micro == 0
            for node, ready in zip([n for n in nodes for _ in range(ranks_per_node)], readies, strict=True):
                assert ready is not None
                check_images(node.arena.view(ready.slot, (sum(ready.num_images), 4, 4, 3)), ready.batches)
                assert not budget or all(b.text_T.size + b.actions_SA.shape[0] <= budget for b in ready.batches)
                node.release(ready.slot)
    finally:
        for node in nodes:
            node.close()


def check_images(images_NHWC: np.ndarray, batches: list[PackedBatch]) -> None:
    """Every image of a sample says which frame it is, and there are as many as its dataset has cameras."""
    frames = [np.repeat(b.sample_ids_B3[:, 2], b.num_images_B) for b in batches]
    assert (images_NHWC[:, 0, 0, 0] == np.concatenate(frames)).all()


def test_a_second_resume_goes_on_alike() -> None:
    memory = Memory([9, 14, 5])
    whole = ids(take(stream_of(memory, size=4), 12))
    parts = [take(stream_of(memory, size=4, start_step=s), n) for s, n in ((0, 3), (3, 2), (5, 7))]
    assert [i for part in parts for i in ids(part)] == whole


@pytest.fixture(scope="module")
def formats(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    root, found = tmp_path_factory.mktemp("formats"), {}
    for version in ("v2.0", "v2.1", "v3.0", "rlds"):
        spec = make_datasets.Spec(version, episodes=3, length="6:11", size="32x32", codec="h264", gop=4, cameras="top")
        make_datasets.make(root / version, spec)
        found[version] = open_dataset(Source(path=str(root / version)))
    return found


RUNS = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([0, 1, 3]))  # ranks, and threads of each node


@given(
    mixture=st.lists(st.sampled_from(["v2.0", "v2.1", "v3.0", "rlds"]), min_size=1, max_size=3),
    runs=st.tuples(RUNS, RUNS, RUNS),
    stops=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    batch_size=st.integers(8, 11),
)
@settings(max_examples=6, deadline=None)
def test_resumed_twice_in_any_world_the_global_batches_are_those_of_one_run(
    formats: dict[str, Dataset],
    mixture: list[str],
    runs: tuple[tuple[int, int], ...],
    stops: tuple[int, int],
    batch_size: int,
) -> None:
    datasets = [formats[name] for name in mixture]
    weights = tuple(1.0 + k for k in range(len(datasets)))
    feed = feed_of(*datasets, size=32, batch_size=batch_size, weights=weights)
    bounds, last = [0, *np.cumsum(stops).tolist()], sum(stops) + 2
    found = []
    for (world, workers), first, stop in zip(runs, bounds, [*bounds[1:], last], strict=True):
        node = Node(0, 1, world)
        found += global_batches(replace(feed, node=node, num_threads=workers, start_step=first), datasets, stop)
    whole = global_batches(replace(feed, num_threads=1), datasets, last)
    assert [sorted(batch) for batch in found] == [sorted(batch) for batch in whole]


def global_batches(feed: Feed, datasets: Sequence[Dataset], stop: int) -> list[list[tuple[int, int, int]]]:
    """The sample ids of each global batch from the feed's first to `stop`, all ranks together."""
    found = []
    with closing(feed.open(datasets)) as node:
        for _ in range(feed.start_step, stop):
            readies = [node.take(rank, 30) for rank in range(feed.node.ranks_per_node)]
            found.append([i for ready in readies if ready for i in ids(ready.batches)])
            for ready in readies:
                assert ready is not None
                node.release(ready.slot)
    return found


def test_samples_that_cannot_be_read_are_replaced_the_same_way_twice() -> None:
    def broken(episode: int, frame: int) -> None:
        if (episode * 31 + frame) % 19 == 0:
            raise InputError(f"frame {frame} is damaged")

    streams = [Memory([40, 33, 60], before_frame=broken) for _ in range(2)]
    limits, told = Limits(max_bad_fraction=0.2), []
    found = [
        ids(take(stream_of(m, size=4, limits=limits, tell=told.append, num_threads=n), 40))
        for m, n in zip(streams, (1, 3), strict=True)
    ]
    assert sorted(found[0]) == sorted(found[1])
    assert found[0] == found[1]
    assert not [1 for _, e, f in found[0] if (e * 31 + f) % 19 == 0]
    promised = expected_ids(feed_of(streams[0], size=4), [streams[0]], 0, 280)
    same = sum(a == b for a, b in zip(sorted(found[0]), sorted(promised), strict=True))
    assert same > 0
    bad = [(e, f) for _, e, f in promised if (e * 31 + f) % 19 == 0]
    assert len(told) == 2 * len(set(bad)) < 2 * len(bad)  # each is told once
    assert "is damaged" in told[0]
    assert "replaced by" in told[0]


def test_a_replacement_fits_into_the_tokens_of_what_it_replaces() -> None:
    def broken(episode: int, frame: int) -> None:
        if frame == 4:
            raise InputError(f"frame {frame} is damaged")

    memory = Memory([6] * 30, before_frame=broken)
    stream = stream_of(memory, size=4, limits=Limits(max_bad_fraction=0.5), tell=lambda text: None, budget_tokens=600)
    take(stream, 180 // 7)
    assert len(stream.replaced) > 20
    fitting = sum(used.frame > bad.frame for bad, used in stream.replaced.items())  # fewer actions are left there
    assert fitting > 0.8 * len(stream.replaced)


def test_a_crashed_decoder_is_told_with_episode_file_and_frame() -> None:
    def crash(episode: int, frame: int) -> None:
        if frame == 3:
            raise Crashed("the decoder crashed (SIGSEGV); leave them out")

    with closing(stream_of(Memory([10], before_frame=crash), size=4, limits=Limits(max_bad_fraction=1))) as stream:
        for _ in range(3):
            next(stream)
    where = "episode 100, observation.images.top in a.parquet, memory, frames 3 to 3: the decoder crashed (SIGSEGV)"
    assert stream.last_reason.startswith(where)


def test_too_many_bad_samples_stop_the_run_and_say_why() -> None:
    def broken(episode: int, frame: int) -> None:
        if frame % 5 == 0:
            raise InputError(f"frame {frame} is damaged")

    with pytest.raises(InputError, match=r"cannot be read; data.max_bad_fraction = 0.05 .* is damaged"):
        take(stream_of(Memory([100, 200], before_frame=broken), size=4, tell=lambda text: None), 1000)


def test_a_store_that_does_not_answer_stops_the_run() -> None:
    def unreachable(episode: int, frame: int) -> None:
        raise Unreachable("the store does not answer")

    with pytest.raises(Unreachable, match="does not answer"):
        take(stream_of(Memory([10], before_frame=unreachable), size=4), 1)


def test_our_own_mistakes_keep_their_traceback() -> None:
    def bug(episode: int, frame: int) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        take(stream_of(Memory([10], before_frame=bug), size=4), 1)


def test_a_late_batch_names_stage_and_file() -> None:
    go, told = threading.Event(), []

    def slow(episode: int, frame: int) -> None:
        assert go.wait(30)

    def tell(text: str) -> None:
        told.append(text)
        if "decode episode" in text:
            go.set()

    stream = stream_of(Memory([10], before_frame=slow), size=4, limits=Limits(stall_s=0.05), tell=tell)
    next(stream)
    stream.close()
    assert "decode episode 100, observation.images.top in a.parquet, memory" in told[-1]


def test_the_first_batch_waits_for_a_few_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "START_S", 30.0)
    with closing(stream_of(Memory([200]), size=4, batch_size=8)) as stream:
        next(stream)
        assert stream.counters()["ready_batches"] >= 3


def test_the_first_batch_does_not_wait_long_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "START_S", 0.05)
    monkeypatch.setattr(node, "FRAMES_AT_ONCE", 1)
    go, num_begun = threading.Event(), itertools.count()

    def before_frame(episode: int, frame: int) -> None:
        assert next(num_begun) < 8 or go.wait(30)  # the first batch's frames come, and no other's

    dataset = Memory([200], before_frame=before_frame)
    with closing(stream_of(dataset, size=4, batch_size=8, window_samples=1, clip_frames=1, num_threads=1)) as stream:
        next(stream)
        assert stream.counters()["ready_batches"] == 0
        go.set()


def test_closing_ends_the_threads_and_the_iteration() -> None:
    before = threading.active_count()
    stream = stream_of(Memory([50]), size=4, num_threads=3)
    next(stream)
    stream.close()
    stream.close()
    assert threading.active_count() == before
    with pytest.raises(StopIteration):
        next(stream)


def test_what_does_not_fit_is_refused_at_once() -> None:
    memory = Memory([5])
    with pytest.raises(InputError, match="less than the 4 processes"):
        stream_of(memory, size=4, batch_size=3, node=Node(0, 2, 2))
    feed = feed_of(memory, size=4)
    memory.camera_keys = ("observation.images.wrist",)
    with pytest.raises(InputError, match=r"observation\.images\.top.*the dataset has: observation\.images\.wrist"):
        feed.open([memory])  # type: ignore[list-item]
    with pytest.raises(InputError, match="no episode"):
        stream_of(Memory([]), size=4)
