"""Files that are damaged, hang or fail while a service process reads them: what its rank gets, and what it is told."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import av
import pytest
from test_service_process import same
from test_stream import check_batch, expected_ids, feed_of, ids, preparation, take

from vlarge.contracts import InputError, PackedBatch
from vlarge.data.check import Unreachable
from vlarge.data.config import DataConfig, Source
from vlarge.data.index import Dataset, Episode, open_dataset
from vlarge.data.service.client import ServiceDied, ServiceProcess, stream_from
from vlarge.data.service.feed import Feed
from vlarge.data.service.stream import Limits, Stream, stream_here

TOP, WRIST = "observation.images.top", "observation.images.wrist"
PATIENCE_S = 120
DEFAULTS = Limits(DataConfig.stall_s, DataConfig.max_bad_fraction)
Place = tuple[int, int, str]  # episode, frame, camera


@pytest.fixture(scope="module")
def good(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 frames; a table and two videos for each episode, in which no frame needs the odd ones."""
    path = tmp_path_factory.mktemp("good") / "set"
    make_datasets.make(path, make_datasets.Spec("v2.1", episodes=10, length="20", codec="h264", gop=2))
    return path


@pytest.fixture
def dataset(good: Path, tmp_path: Path) -> Dataset:
    """A copy that may be damaged, opened."""
    shutil.copytree(good, tmp_path / "set")
    return open_dataset(Source(path=str(tmp_path / "set")))


def lose_packets(dataset: Dataset, places: Iterable[Place]) -> None:
    """Zeros where these frames were, as a disk gives them back that lost a write."""
    for episode, frame, camera in places:
        path = Path(dataset.root, dataset.episodes[episode].file_of(camera))
        with av.open(str(path)) as container:
            packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
        with path.open("r+b") as file:
            start, size = packets[frame]
            file.seek(start)
            file.write(bytes(size))


@contextmanager
def rank(
    feed: Feed,
    limits: Limits,
    tell: Callable[[str], None] = print,
    started: Callable[[int], None] = lambda pid: None,
) -> Iterator[Stream]:
    """A rank's stream from a process, which is killed where a test would wait for ever. `started` is given its pid."""
    process = ServiceProcess(feed)
    started(process.pid)
    late = threading.Timer(PATIENCE_S, process.close)
    late.start()
    try:
        with closing(stream_from(process.address, 0, feed.image_shape, process, limits, tell)) as stream:
            yield stream
    finally:
        late.cancel()


# ---- damage


def test_one_bad_sample_in_a_hundred_is_replaced_the_same_way_twice(
    dataset: Dataset, make_datasets: ModuleType
) -> None:
    bad = [(3, 7, TOP), (8, 13, WRIST)]
    lose_packets(dataset, bad)
    assert open_dataset(Source(path=dataset.root)).faults == ()  # only decoding tells
    feed = feed_of(dataset, batch_size=25)
    runs = []
    for num_threads in (1, 2):
        with rank(replace(feed, num_threads=num_threads), DEFAULTS) as stream:
            runs.append((take(stream, 24), stream.num_replaced, stream.replaced))
    (batches, times, replaced), (again, *replaced_again) = runs
    assert same(batches, again)
    assert replaced_again == [times, replaced]
    assert {(i.episode, i.frame) for i in replaced} == {(episode, frame) for episode, frame, _ in bad}
    assert times == 3 * len(bad)  # in each of three epochs
    promised, found = Counter(expected_ids(feed, [dataset], 0, 600)), Counter(ids(batches))
    assert promised - found == Counter({tuple(i): 3 for i in replaced})
    assert all(found[tuple(used)] > 3 for used in replaced.values())
    for batch in batches[:8]:
        check_batch(batch, dataset, preparation(dataset), make_datasets)


def test_one_bad_sample_in_five_stops_the_run_and_says_why(dataset: Dataset) -> None:
    lose_packets(dataset, [(episode, frame, WRIST) for episode in range(10) for frame in (1, 7, 13, 19)])
    why = (
        r"^\d+ of \d+ samples cannot be read; data.max_bad_fraction = 0.05 allows fewer; the last: "
        r"episode \d+, camera observation.images.wrist, frames \d+ to \d+ .videos/\S+mp4.: .*frame \d+ "
    )
    with rank(feed_of(dataset, batch_size=25), DEFAULTS) as stream:
        with pytest.raises(InputError, match=why):
            take(stream, 24)
        assert stream.num_samples < 200


# ---- files that hang or fail in the middle of a stream


def narrow(dataset: Dataset) -> Feed:
    """A feed that reads little ahead and keeps nothing."""
    return feed_of(
        dataset, size=32, batch_size=8, window_samples=8, memory_bytes=320 << 10, num_threads=2, keep_small=False
    )


def last_to_come(feed: Feed, dataset: Dataset) -> Episode:
    """The episode that a stream needs last."""
    first: dict[int, int] = {}
    for position, (_, episode, _) in enumerate(expected_ids(feed, [dataset], 0, dataset.num_frames)):
        first.setdefault(episode, position)
    return dataset.episodes[max(first, key=first.__getitem__)]


def let_go(pipe: Path) -> int | None:
    """A writer, for which everyone who opens the pipe waits; None while nobody does."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_a_file_that_hangs_is_named_while_it_does(dataset: Dataset, tmp_path: Path) -> None:
    feed = narrow(dataset)
    episode = last_to_come(feed, dataset)
    name = episode.file_of(TOP)
    video, kept, pipe = Path(dataset.root, name), tmp_path / "kept", tmp_path / "pipe"
    os.mkfifo(pipe)
    told: list[str] = []
    writer: int | None = None

    def tell(text: str) -> None:
        nonlocal writer
        if writer is None and name in text and (writer := let_go(pipe)) is not None:
            kept.replace(video)
            told.append(text)

    def batches(stream: Stream) -> Iterator[PackedBatch]:
        yield next(stream)[0]
        kept.hardlink_to(video)
        Path(tmp_path, "link").hardlink_to(pipe)
        Path(tmp_path, "link").replace(video)
        yield from take(stream, 26)

    with rank(feed, Limits(stall_s=1), tell) as stream:
        found = [replace(b, images_NHWC=b.images_NHWC.copy()) for b in batches(stream)]
        assert not stream.replaced
    where = rf"decode-\d: decode .*episode {episode.index}, {TOP} in {name}, .*{dataset.root}.* for \d+ s"
    assert re.match(rf"waited \d s for data so far: .*{where}", told[0])
    assert writer is not None
    os.close(writer)  # it was open so that nobody would hang there once more
    assert same(found, take(stream_here(feed, [dataset]), 27))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_disk_error(path: Path) -> None:
    """Reading what lies at the start of a process's memory, where there is none, fails as a bad disk does."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize(
    ("is_table", "becomes", "why"),
    [
        (False, a_folder, r"cannot be read .IsADirectoryError: .*Is a directory"),
        (False, a_disk_error, r"still cannot be read after \d+ s .OSError: .*Input/output error.*start again"),
        (True, Path.unlink, r"the file has gone since it was indexed"),
    ],
)
def test_a_file_that_cannot_be_read_any_more_stops_the_run_and_changes_no_sample(
    is_table: bool, becomes: Callable[[Path], None], why: str, dataset: Dataset
) -> None:
    feed = replace(narrow(dataset), remote_deadline_s=0.3)
    episode = last_to_come(feed, dataset)
    path = Path(dataset.root, episode.table_file if is_table else episode.file_of(TOP))
    with rank(feed, DEFAULTS) as stream:
        next(stream)
        becomes(path)
        with pytest.raises(Unreachable, match=f"^{path}: {why}"):
            deque(itertools.islice(stream, 100), maxlen=0)
        with pytest.raises(Unreachable, match=why):  # asked again, it says so again
            stream._service.take(0.1)
        assert not stream.replaced


def test_memory_that_the_system_refuses_is_told_with_its_place(dataset: Dataset) -> None:
    def refuse(pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # less than two batches

    why = r"(?s)arena\.py.*ftruncate.*OSError: .*File too large"
    with rank(narrow(dataset), DEFAULTS, started=refuse) as stream, pytest.raises(ServiceDied, match=why):
        take(stream, 100)
