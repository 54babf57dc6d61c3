"""The service as a process: the same batches, and a clear end for everyone, however one of them dies."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from test_stream import check_batch, expected_ids, feed_of, ids, preparation, take

from vlarge.contracts import InputError, PackedBatch
from vlarge.data.bench import children_of
from vlarge.data.check import Unreachable
from vlarge.data.config import Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.service.arena import Arena
from vlarge.data.service.batches import Ready
from vlarge.data.service.client import SILENT_S, Remote, ServiceDied, ServiceProcess, stream_from
from vlarge.data.service.decoder import Apart, Pictures
from vlarge.data.service.feed import Feed
from vlarge.data.service.messages import NEXT, REQUEST, Receiver, describe, send
from vlarge.data.service.plan import Node
from vlarge.data.service.stream import Limits, Stream, stream_here

DEADLINE_S = 60


@pytest.fixture(scope="module")
def dataset(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("process") / "set"
    make_datasets.make(path, make_datasets.Spec("v3.0", episodes=4, length="12:20", size="48x64", codec="h264", gop=4))
    return open_dataset(Source(path=str(path)))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def same(one: list[PackedBatch], other: list[PackedBatch]) -> bool:
    names = PackedBatch.__dataclass_fields__
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for a, b in zip(one, other, strict=True) for n in names)


def test_the_batches_are_those_of_a_stream_in_this_process(dataset: Dataset) -> None:
    feed = feed_of(dataset, size=32)
    process = ServiceProcess(feed)
    stream = stream_from(process.address, 0, feed.image_shape, process)
    assert same(take(stream, 30), take(stream_here(feed, [dataset]), 30))
    assert not is_running(process.pid)


def test_two_ranks_share_one_service(dataset: Dataset) -> None:
    feed = feed_of(dataset, size=32, batch_size=8, node=Node(0, 1, 2))
    process = ServiceProcess(feed)
    streams = [stream_from(process.address, rank, feed.image_shape, process if rank == 0 else None) for rank in (1, 0)]
    alone = take(stream_here(feed_of(dataset, size=32, batch_size=8), [dataset]), 10)
    for batch in alone:
        parts = [next(stream)[0] for stream in streams]
        ids = sorted(i for part in parts for i in part.sample_ids_B3.tolist())
        assert ids == sorted(batch.sample_ids_B3.tolist())
        assert {part.num_samples for part in parts} == {4}
    for stream in streams:
        stream.close()
    wait_until(lambda: not is_running(process.pid))


def test_every_frame_reaches_two_ranks_right(make_datasets: ModuleType, tmp_path: Path) -> None:
    """As LeRobot writes them today: AV1, a key frame every second one, several episodes in a file."""
    spec = make_datasets.Spec("v3.0", episodes=4, length="14:22", video_episodes="2,3", data_episodes=2)
    make_datasets.make(tmp_path / "set", spec)
    dataset = open_dataset(Source(path=str(tmp_path / "set")))
    feed = feed_of(dataset, batch_size=8, node=Node(0, 1, 2))
    process = ServiceProcess(feed)
    streams = [stream_from(process.address, rank, feed.image_shape, process if rank == 0 else None) for rank in (1, 0)]
    for step in range(2 * dataset.num_frames // 8 + 1):  # more than two epochs
        parts = [next(stream)[0] for stream in streams]
        for part in parts:
            check_batch(part, dataset, preparation(dataset), make_datasets)
        assert sorted(ids(parts)) == sorted(expected_ids(feed, [dataset], 8 * step, 8 * step + 8))
    for stream in streams:
        stream.close()


def test_a_killed_service_ends_the_run_with_a_clear_error(dataset: Dataset) -> None:
    feed = feed_of(dataset, size=32)
    process = ServiceProcess(feed)
    stream = stream_from(process.address, 0, feed.image_shape, process)
    kept = next(stream)[0]
    before = kept.images_NHWC.copy()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ServiceDied, match=r"ended .killed by SIGKILL.; continue the run with --resume"):
        take(stream, 10_000)
    assert (kept.images_NHWC == before).all()


def decoding(feed: Feed) -> tuple[ServiceProcess, Stream, PackedBatch]:
    """A service with two decoders at work, its stream, and the first batch."""
    process = ServiceProcess(replace(feed, num_threads=2, keep_small=False))
    stream = stream_from(process.address, 0, feed.image_shape, process)
    first = next(stream)[0]
    wait_until(lambda: len(children_of(process.pid)) == 2)
    return process, stream, first


def test_killed_decoders_are_started_again_and_nothing_changes(dataset: Dataset) -> None:
    feed = feed_of(dataset, size=32, window_samples=8, memory_bytes=1 << 20)
    process, stream, first = decoding(feed)
    batches = [first, *(next(stream)[0] for _ in range(3))]
    killed = children_of(process.pid)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    batches += take(stream, 60)
    assert same(batches, take(stream_here(feed, [dataset]), 64))
    assert not any(is_running(pid) for pid in killed)
    assert not stream.replaced


def test_decoders_end_with_their_service(dataset: Dataset) -> None:
    process, stream, _ = decoding(feed_of(dataset, size=32))
    decoders = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in decoders))
    stream.close()


def test_a_decoder_tells_what_went_wrong(dataset: Dataset) -> None:
    feed, arena = feed_of(dataset, size=32, padding="corner"), Arena(1 << 20)
    with closing(Apart(feed.to_json(), [dataset.revision], arena)) as decoder:
        slot = arena.take()
        key = dataset.camera_keys[0]
        decoder.fill([Pictures(0, 1, key, (3, 5), ((slot, 0), (slot, 1)))])
        expected = np.zeros((32, 32, 3), np.uint8)
        dataset.fill_frames(dataset.episodes[1], key, [5], [expected], "corner")
        assert (arena.whole(slot)[32 * 32 * 3 :][: expected.size] == expected.ravel()).all()
        assert decoder.num_decoded == dataset.num_packets(dataset.episodes[1], key, [3, 5])
        with pytest.raises(InputError, match=r"frame \d+ was asked for, the video has"):
            decoder.fill([Pictures(0, 1, key, (999,), ((slot, 0),))])
        with pytest.raises(RuntimeError, match="IndexError"):
            decoder.fill([Pictures(3, 1, key, (0,), ((slot, 0),))])
        decoder.fill([Pictures(0, 0, key, (0,), ((slot, 0),))])
    gone = feed.to_json().replace(str(dataset.root), str(dataset.root) + "-gone")
    with closing(Apart(gone, [dataset.revision], arena)) as broken, pytest.raises(Unreachable, match="cannot open the"):
        broken.fill([Pictures(0, 0, key, (0,), ((slot, 0),))])
    with closing(Apart(feed.to_json(), ["another"], arena)) as other, pytest.raises(Unreachable, match="has changed"):
        other.fill([Pictures(0, 0, key, (0,), ((slot, 0),))])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_decoder_that_is_killed_works_on_and_one_that_crashes_says_so(dataset: Dataset, number: int) -> None:
    feed, arena = feed_of(dataset, size=32), Arena(1 << 20)
    wanted = [Pictures(0, 1, dataset.camera_keys[0], (3,), ((arena.take(), 0),))]
    with closing(Apart(feed.to_json(), [dataset.revision], arena)) as decoder:
        decoder.fill(wanted)
        before = arena.whole(0).copy()
        arena.whole(0)[:] = 0
        assert decoder._process is not None
        os.kill(decoder._process.pid, number)
        if number == signal.SIGSEGV:
            with pytest.raises(InputError, match=r"the decoder crashed .SIGSEGV"):
                decoder.fill(wanted)
        decoder.fill(wanted)
    assert (arena.whole(0) == before).all()


def test_signals_to_the_whole_group_leave_the_service_to_the_trainer(dataset: Dataset) -> None:
    process, stream, _ = decoding(feed_of(dataset, size=32))
    for pid in (process.pid, *children_of(process.pid)):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            os.kill(pid, number)
    take(stream, 50)


def test_a_killed_trainer_leaves_no_process_and_no_shared_memory(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "feed.json").write_text(feed_of(dataset, size=32).to_json())
    program = (
        "import sys; from vlarge.data.service.client import *; from vlarge.data.service.feed import Feed\n"
        "feed = Feed.from_json(open(sys.argv[1]).read()); p = ServiceProcess(feed)\n"
        "stream = stream_from(p.address, 0, feed.image_shape, p); next(stream); print(p.pid, flush=True)\n"
        "for _ in stream: pass"
    )
    before = set(os.listdir("/dev/shm"))
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "feed.json")], stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    with trainer.stdout as output:
        pid = int(output.readline())
        assert is_running(pid)
        trainer.kill()
        trainer.wait()
    wait_until(lambda: not is_running(pid))
    assert set(os.listdir("/dev/shm")) == before


def test_what_was_late_while_nobody_waited_is_not_reported_and_no_batch_is_lost() -> None:
    """A batch is asked for while its rank works on the one before: a `late` of that time is no news to it."""
    ready = Ready(3, 1, [], [], [])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + "vlarge-test-" + secrets.token_hex(8))
        listener.listen()
        remote = Remote()
        remote.connect(listener.getsockname()[1:].decode(), 0)
        connection, _ = listener.accept()
    with connection, closing(remote):
        for number in range(2):
            header, arrays = describe(replace(ready, step=number))
            send(connection, {"late": "an old matter"})
            send(connection, {**header, "counters": {}}, arrays)
        found = [remote.take(DEADLINE_S) for _ in range(2)]
        assert [each and each.step for each in found] == [0, 1]
        requests = Receiver(connection)
        requests.exactly(8, DEADLINE_S)
        assert [REQUEST.unpack(requests.exactly(REQUEST.size, DEADLINE_S))[0] for _ in range(3)] == [NEXT] * 3
        send(connection, {"late": "decoding"})
        started_s = time.monotonic()
        assert remote.take(0.1) is None  # the service says nothing more: that it was late is told all the same
        assert time.monotonic() - started_s < SILENT_S
        assert remote.late() == "decoding"
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)  # nothing was asked for twice


def test_a_long_opening_is_told() -> None:
    told: list[str] = []
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind("\0" + "vlarge-test-" + secrets.token_hex(8))
        listener.listen()
        address = listener.getsockname()[1:].decode()
        opening = pool.submit(stream_from, address, 0, (4, 4), None, Limits(stall_s=0.05), told.append)
        connection, _ = listener.accept()
        wait_until(lambda: len(told) > 1)
        connection.close()
        with pytest.raises(ServiceDied):
            opening.result(DEADLINE_S)
    assert "for the data service so far: it is opening its datasets" in told[0]


def test_what_the_service_cannot_open_is_told_to_the_rank(dataset: Dataset) -> None:
    feed = feed_of(dataset, size=32)
    broken = Feed.from_json(feed.to_json().replace(str(dataset.root), str(dataset.root) + "-gone"))
    process = ServiceProcess(broken)
    with pytest.raises(InputError, match="-gone does not exist"):
        stream_from(process.address, 0, feed.image_shape, process)
    assert not is_running(process.pid)


def test_a_feed_survives_the_way_to_another_process(dataset: Dataset) -> None:
    feed = feed_of(dataset, size=32, node=Node(1, 2, 3), weights=(2.0,))
    assert Feed.from_json(feed.to_json()) == feed
