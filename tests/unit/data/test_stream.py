"""The training stream: the right frame, each once, in the order that is promised, whatever the ranks and the start."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError, PackedBatch
from vlarge.data.config import Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.manifest import Episode, EpisodeTable
from vlarge.data.order import Order
from vlarge.data.service.plan import plan_pieces
from vlarge.data.service.stream import Stream
from vlarge.data.stats import FeatureStats, dataset_stats
from vlarge.data.tokens import ByteTokenizer, encode_prompt
from vlarge.data.transforms import Normalizer, Preparation

HORIZON = 5


def preparation(dataset: Any, size: int = 96) -> Preparation:
    unit = {k: np.array([v]) for k, v in (("min", -1), ("max", 1), ("mean", 0), ("std", 1), ("q01", -1), ("q99", 1))}
    stats = dataset_stats(dataset) if isinstance(dataset, Dataset) else {}
    state, action = (Normalizer("min_max", stats.get(k, FeatureStats(**unit, count=2))) for k in KEYS)
    return Preparation(size, HORIZON, dataset.camera_keys, ByteTokenizer(), state, action, 400)


KEYS = ("observation.state", "action")


def order_of(dataset: Any, clip_frames: int = 4, window_clips: int = 5, seed: int = 0) -> Order:
    return Order([e.length for e in dataset.episodes], seed, clip_frames, window_clips)


def take(stream: Stream, num_batches: int) -> list[PackedBatch]:
    try:
        return list(itertools.islice(stream, num_batches))
    finally:
        stream.close()


def ids(batches: Sequence[PackedBatch]) -> list[tuple[int, int]]:
    return [(e, f) for b in batches for _, e, f in b.sample_ids_B3.tolist()]


# ---- on real files


@pytest.mark.parametrize("gop", [2, 15])
@pytest.mark.parametrize("codec", ["h264", "libsvtav1"])
@pytest.mark.parametrize("version", ["v3.0", "v2.1", "v2.0"])
def test_every_frame_through_the_stream_is_right(
    version: str, codec: str, gop: int, make_datasets: ModuleType, tmp_path: Path
) -> None:
    spec = make_datasets.Spec(
        version, episodes=4, length="14:22", codec=codec, gop=gop, video_episodes="2,3", data_episodes=2
    )
    make_datasets.make(tmp_path / "set", spec)
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    if version == "v3.0":
        assert [len({e.videos[k].file for e in dataset.episodes}) for k in dataset.camera_keys] == [2, 2]
    prepared, batch_size = preparation(dataset), 7
    stream = Stream(dataset, order_of(dataset), prepared, batch_size=batch_size)
    batches = take(stream, 2 * dataset.num_frames // batch_size + 1)
    for batch in batches:
        check_batch(batch, dataset, prepared, make_datasets)
    n = dataset.num_frames
    expected = sorted((e.index, f) for e in dataset.episodes for f in range(e.length))
    in_order = [(dataset.episodes[e].index, f) for e, f in order_of(dataset).samples(0, 2 * n).tolist()]
    assert sorted(in_order[:n]) == sorted(in_order[n:]) == expected
    assert sorted(ids(batches)[: 2 * n // 7 * 7]) == sorted(in_order[: 2 * n // 7 * 7])


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


def test_a_dataset_that_fits_into_the_window_is_decoded_once_for_all_epochs(dataset: Dataset) -> None:
    order = order_of(dataset, 16, 256)
    stream = Stream(dataset, order, preparation(dataset, 32), batch_size=10)
    batches = take(stream, 3 * dataset.num_frames // 10 + 1)
    assert sum(b.num_samples for b in batches) > 3 * dataset.num_frames
    assert stream.frames_used > 3 * stream.frames_decoded
    assert stream.frames_decoded == 2 * dataset.num_frames


def test_frames_that_share_a_group_of_pictures_are_read_together(dataset: Dataset) -> None:
    order = order_of(dataset, 4, 12)  # windows of less than an epoch, clips shorter than a group of pictures
    keys = dataset.camera_keys
    pieces = plan_pieces(
        order, 8, 0, 1, 0, lambda position, frames: dataset.starts_afresh(dataset.episodes[position], keys, frames)
    )
    for window, members in itertools.groupby(itertools.islice(pieces, 40), key=lambda p: p.window):
        found = list(members)
        if order.window(window)[1] > 2 * dataset.num_frames:
            break
        together: dict[int, list[int]] = {}
        for episode, frame in order.samples(*order.window(window)).tolist():
            together.setdefault(episode, []).append(frame)
        assert sorted((p.episode, f) for p in found for f in p.frames) == sorted(
            (e, f) for e, frames in together.items() for f in frames
        )
        apart = sum(num_packets(dataset, p.episode, list(p.frames)) for p in found)
        assert apart == sum(num_packets(dataset, e, sorted(frames)) for e, frames in together.items())
        assert len(found) >= len(together)


def num_packets(dataset: Dataset, position: int, frames: list[int]) -> int:
    """Packets that have to be decoded for these frames of all cameras, in one go."""
    before = dataset.num_decoded
    for key in dataset.camera_keys:
        dataset.read_frames(dataset.episodes[position], key, frames)
    return dataset.num_decoded - before


def test_a_resumed_stream_has_the_same_bytes(dataset: Dataset) -> None:
    order, prepared = order_of(dataset), preparation(dataset, 32)
    whole = take(Stream(dataset, order, prepared, batch_size=9), 20)
    resumed = take(Stream(dataset, order, prepared, batch_size=9, start_step=13), 7)
    for one, other in zip(whole[13:], resumed, strict=True):
        for name in PackedBatch.__dataclass_fields__:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


# ---- on a dataset in memory


@dataclass
class Memory:
    """A dataset without files: pixel values, state and action say which frame it is."""

    lengths: list[int]
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
        return [Episode(100 + i, n, ("task",), "", 0, {}) for i, n in enumerate(self.lengths)]

    @property
    def num_frames(self) -> int:
        return sum(self.lengths)

    def read_table(self, episode: Episode) -> EpisodeTable:
        column = np.arange(episode.length, dtype=np.float32)[:, None] / 100
        return EpisodeTable(column, column, ["task"] * episode.length)

    def starts_afresh(self, episode: Episode, keys: Sequence[str], frames: np.ndarray) -> np.ndarray:
        return np.diff(frames // self.group_frames, prepend=-1) != 0

    def iter_frames(self, episode: Episode, key: str, frames: Sequence[int], size: int) -> Iterator[np.ndarray]:
        for frame in frames:
            self.before_frame(episode.index, frame)
            with self.lock:
                self.num_decoded += 1
            yield np.full((size, size, 3), frame, np.uint8)


def stream_of(memory: Memory, order: Order, **options: Any) -> Stream:
    return Stream(memory, order, preparation(memory, 4), **options)  # type: ignore[arg-type]


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum),
    seed=st.integers(0, 1000),
    shuffle=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    group_frames=st.integers(1, 7),
    world=st.integers(1, 4),
    per_rank=st.integers(1, 5),
    start_step=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_a_global_batch_is_the_same_on_any_ranks_from_any_start(
    lengths: list[int],
    seed: int,
    shuffle: tuple[int, int],
    group_frames: int,
    world: int,
    per_rank: int,
    start_step: int,
) -> None:
    memory, batch_size = Memory(lengths, group_frames=group_frames), world * per_rank + world // 2
    order = Order(lengths, seed, *shuffle)
    streams = [
        stream_of(memory, order, batch_size=batch_size, rank=r, world=world, start_step=start_step, decode_threads=2)
        for r in range(world)
    ]
    try:
        for step in range(start_step, start_step + 4):
            batches = [next(stream) for stream in streams]
            wanted = order.samples(step * batch_size, (step + 1) * batch_size).tolist()
            assert sorted(ids(batches)) == sorted((100 + e, f) for e, f in wanted)
            for batch in batches:
                assert (batch.images_NHWC[:, 0, 0, 0] == batch.sample_ids_B3[:, 2]).all()
                assert batch.num_samples in (batch_size // world, -(-batch_size // world))
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("world", [1, 4])
def test_memory_stays_within_one_window(world: int) -> None:
    memory = Memory([40] * 50)
    order = Order(memory.lengths, 0, clip_frames=8, window_clips=16)
    stream = stream_of(memory, order, batch_size=32, rank=world - 1, world=world)
    sample_bytes = stream._window._sample_bytes
    seen = []
    for batch in itertools.islice(stream, 120):
        held = list(stream._window._held.values())
        assert sum(image.nbytes for s in held for image in s.images.values()) <= stream.window_bytes
        seen.append(stream.window_bytes / sample_bytes)
        assert batch.num_samples == 32 // world
    stream.close()
    # A window's share of one rank is 128 / world on average; a rank's real share varies a little.
    assert max(seen) <= 128 / world + (12 if world > 1 else 0)


def test_a_resumed_stream_reads_nothing_of_what_is_behind_it() -> None:
    read: list[tuple[int, int]] = []
    memory = Memory([40] * 5, before_frame=lambda episode, frame: read.append((episode - 100, frame)))
    order = Order(memory.lengths, 0, clip_frames=8, window_clips=8)
    take(stream_of(memory, order, batch_size=10, start_step=3, prefetch_batches=1), 1)
    behind = {tuple(s) for s in order.samples(0, 30).tolist()}
    assert not behind & set(read)


def test_a_piece_larger_than_the_budget_is_read_all_the_same() -> None:
    memory = Memory([8, 8, 8], group_frames=8)  # a window is one piece
    order = Order(memory.lengths, 0, clip_frames=8, window_clips=1)
    stream = stream_of(memory, order, batch_size=3, rank=1, world=2)  # two thirds of it, in half its room
    assert sum(b.num_samples for b in take(stream, 8)) == 16


def test_reading_ahead_goes_on_into_the_next_window() -> None:
    memory = Memory([40] * 50)
    order = Order(memory.lengths, 0, clip_frames=8, window_clips=16)
    stream = stream_of(memory, order, batch_size=16)
    for _ in range(4):
        next(stream)  # half of the first window is used: room for the next one
    deadline = time.monotonic() + 10
    while memory.num_decoded < 128 + 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    stream.close()
    assert memory.num_decoded >= 128 + 40


def test_an_error_in_a_thread_reaches_the_consumer() -> None:
    def fail(episode: int, frame: int) -> None:
        if (episode, frame) == (101, 3):
            raise InputError("episode 101, frame 3 is damaged")

    memory = Memory([10, 10], before_frame=fail)
    stream = stream_of(memory, Order(memory.lengths, 0), batch_size=4)
    with pytest.raises(InputError, match="frame 3 is damaged"):
        list(itertools.islice(stream, 10))
    assert list(stream) == []
    assert alive(stream) == []


def alive(stream: Stream) -> list[threading.Thread]:
    return [t for t in (stream._packer, *stream._window._threads) if t.is_alive()]


def test_close_ends_all_threads_whatever_they_wait_for() -> None:
    memory = Memory([50] * 4)
    for batches_taken in (0, 1):
        stream = stream_of(memory, Order(memory.lengths, 0, 4, 4), batch_size=8, prefetch_batches=1)
        for _ in range(batches_taken):
            next(stream)
        stream.close()
        stream.close()
        assert alive(stream) == []
        assert list(stream) == []


def test_waiting_for_data_is_counted() -> None:
    slow = Memory([10], before_frame=lambda episode, frame: time.sleep(0.01))
    stream = stream_of(slow, Order([10], 0), batch_size=10)
    next(stream)
    first = stream.wait_s
    deadline = time.monotonic() + 10
    while stream._batches.qsize() < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    next(stream)
    stream.close()
    assert first >= 0.05
    assert stream.wait_s - first < first


def test_what_does_not_fit_is_refused_at_once() -> None:
    memory = Memory([5])
    prepared = preparation(memory)
    with pytest.raises(InputError, match="less than the 4 processes"):
        stream_of(memory, Order([5], 0), batch_size=3, world=4)
    memory.camera_keys = ("observation.images.wrist",)
    with pytest.raises(InputError, match=r"observation\.images\.top.*the dataset has: observation\.images\.wrist"):
        Stream(memory, Order([5], 0), prepared, batch_size=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no episode"):
        Stream(Memory([]), Order([5], 0), prepared, batch_size=3)  # type: ignore[arg-type]
