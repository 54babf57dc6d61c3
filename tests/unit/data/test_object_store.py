"""A dataset in an object store: the same samples as from a folder, whatever the network does, or a clear end."""

from __future__ import annotations

import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from threading import Thread
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem, copy_files
from s3_server import SECRET, S3Server
from test_service_faults import DEFAULTS, rank
from test_service_process import same
from test_stream import feed_of, take

from vlarge.contracts import InputError, PackedBatch
from vlarge.data.check import Unreachable
from vlarge.data.config import Source
from vlarge.data.fetch import open_store
from vlarge.data.formats.rlds_records import iter_records
from vlarge.data.formats.write import LeRobotWriter
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.service.feed import Feed
from vlarge.data.service.stream import Limits, stream_here


@pytest.fixture(scope="module")
def bucket(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of datasets, to be served as a bucket: `v3` and `v2`."""
    root = tmp_path_factory.mktemp("buckets")
    common = {"episodes": 4, "length": "8:12", "size": "48x64", "codec": "h264", "fps": 10}
    make_datasets.make(root / "bucket/v3", make_datasets.Spec("v3.0", video_episodes="2,3", **common))
    make_datasets.make(root / "bucket/v2", make_datasets.Spec("v2.1", **common))
    return root


@pytest.fixture
def server(bucket: Path, serve_s3: Callable[[Path], S3Server]) -> S3Server:
    return serve_s3(bucket)


def everything(dataset: Dataset) -> list[np.ndarray]:
    """All numbers and pictures."""
    found = []
    for episode in dataset.episodes:
        table = dataset.read_table(episode)
        frames = [dataset.read_frames(episode, key, range(episode.length)) for key in dataset.camera_keys]
        found += [table.state_TA, table.action_TA, *frames]
    return found


@pytest.mark.parametrize("name", ["v3", "v2"])
def test_s3_gives_the_samples_of_the_folder(name: str, server: S3Server, bucket: Path, tmp_path: Path) -> None:
    remote = open_dataset(Source(path=server.address(f"bucket/{name}")), str(tmp_path / "index"))
    local = open_dataset(Source(path=str(bucket / "bucket" / name)), str(tmp_path / "index"))
    assert remote.faults == local.faults == ()
    assert remote.revision == local.revision
    assert remote.episodes == local.episodes
    assert remote.root == f"s3://bucket/{name}"
    for here, there in zip(everything(local), everything(remote), strict=True):
        assert np.array_equal(here, there)
    twice = {request: n for request, n in Counter(server.reads()).items() if n > 1}
    assert not twice  # each block came once


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    """Speaks S3 as Amazon does, with signatures, pages and ranges of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anything")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)  # always there, if started again
    server.start()
    yield server
    server.stop()


def upload(server: ThreadedMotoServer, folder: Path) -> str:
    """The address of a copy of `folder` in a server's bucket."""
    host, port = server.get_host_and_port()
    options = {"endpoint_override": f"{host}:{port}", "scheme": "http", "region": "us-east-1"}
    store = S3FileSystem(allow_bucket_creation=True, **options)
    store.create_dir("bucket")
    copy_files(str(folder), "bucket/folder with + and é/set", destination_filesystem=store)
    return f"s3://bucket/folder with + and é/set?{urlencode(options)}"


def test_a_store_that_others_wrote_gives_the_samples_of_the_folder(
    moto: ThreadedMotoServer, bucket: Path, tmp_path: Path
) -> None:
    remote = open_dataset(Source(path=upload(moto, bucket / "bucket/v3")), str(tmp_path / "index"))
    local = open_dataset(Source(path=str(bucket / "bucket/v3")), str(tmp_path / "index"))
    assert remote.revision == local.revision
    for here, there in zip(everything(local), everything(remote), strict=True):
        assert np.array_equal(here, there)


def test_nothing_is_read_again_from_a_store_that_has_not_changed(server: S3Server, tmp_path: Path) -> None:
    source = Source(path=server.address("bucket/v3"))
    everything(open_dataset(source, str(tmp_path)))
    assert server.reads()
    server.requests.clear()
    everything(open_dataset(source, str(tmp_path)))
    assert server.reads() == []


def test_a_failing_store_is_asked_again(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    dataset = open_dataset(Source(path=server.address("bucket/v3")), str(tmp_path))
    shutil.rmtree(tmp_path / "blocks")
    server.num_failures = 5  # Arrow itself asks three times
    local = open_dataset(Source(path=str(bucket / "bucket/v3")), str(tmp_path / "local"))
    for here, there in zip(everything(local), everything(dataset), strict=True):
        assert np.array_equal(here, there)
    assert server.num_failures == 0


def test_after_the_deadline_file_and_store_are_named(server: S3Server, tmp_path: Path) -> None:
    dataset = open_dataset(Source(path=server.address("bucket/v3")), str(tmp_path), remote_deadline_s=0.5)
    shutil.rmtree(tmp_path / "blocks")
    server.num_failures = 10**6
    start_s = time.monotonic()
    episode, key = dataset.episodes[0], dataset.camera_keys[0]
    with pytest.raises(Unreachable, match=r"^s3://bucket/v3/videos/.*mp4: still cannot be read after") as caught:
        dataset.read_frames(episode, key, [0])
    assert time.monotonic() - start_s < 15
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    server.num_failures = 0
    assert dataset.read_frames(episode, key, [0]).shape == (1, 48, 64, 3)


def feeds(local: Path, address: str, kept: Path, **changes: Any) -> tuple[Feed, Feed]:
    """The same stream from a folder and from a store, whose index and blocks are in `kept`."""
    here = feed_of(open_dataset(Source(path=str(local))), size=32, keep_small=False)
    return here, replace(here, sources=(Source(path=address),), index_dir=str(kept), **changes)


def forget_blocks(feed: Feed) -> None:
    """At one stroke: others may be writing there."""
    Path(feed.index_dir, "blocks").rename(Path(feed.index_dir, "forgotten"))


@contextmanager
def answering_with_errors(server: S3Server) -> Iterator[Callable[[], int]]:
    """Gives how many there were so far."""
    server.num_failures = 10**6
    yield lambda: 10**6 - server.num_failures
    server.num_failures = 0


@contextmanager
def hanging_up(server: ThreadedMotoServer) -> Iterator[Callable[[], int]]:
    """Gives how many connections ended without an answer so far."""
    ended = []

    class HangUp(BaseRequestHandler):
        def handle(self) -> None:
            ended.append(self.client_address)

    class Gate(TCPServer):
        allow_reuse_address = True

    address = server.get_host_and_port()
    server.stop()
    with Gate(address, HangUp) as gate:
        Thread(target=gate.serve_forever, args=(0.02,)).start()
        try:
            yield lambda: len(ended)
        finally:
            gate.shutdown()
    server.start()


def stream_through_trouble(feeds: tuple[Feed, Feed], trouble: AbstractContextManager[Callable[[], int]]) -> None:
    """A store that fails between two batches, until the rank is told that it waits for a file: nothing is lost."""
    local, remote = feeds
    told: list[str] = []
    batches: list[PackedBatch] = []

    def tell(text: str) -> None:
        if batches and "file-000." in text and num_failures() > 3:  # Arrow itself asks three times
            told.append(text)
            mended.close()

    with rank(remote, Limits(stall_s=0.3), tell) as stream, ExitStack() as mended:
        batches += next(stream)
        num_failures = mended.enter_context(trouble)
        forget_blocks(remote)
        batches += take(stream, 40)
        assert not stream.replaced
    assert told
    assert same(batches, take(stream_here(local), 41))


def test_a_stream_waits_for_a_store_that_answers_with_errors(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    both = feeds(bucket / "bucket/v3", server.address("bucket/v3"), tmp_path)
    stream_through_trouble(both, answering_with_errors(server))


def test_a_stream_waits_for_a_store_that_hangs_up(moto: ThreadedMotoServer, bucket: Path, tmp_path: Path) -> None:
    both = feeds(bucket / "bucket/v3", upload(moto, bucket / "bucket/v3"), tmp_path)
    stream_through_trouble(both, hanging_up(moto))


def test_a_store_that_fails_for_good_ends_the_stream_and_is_named(
    server: S3Server, bucket: Path, tmp_path: Path
) -> None:
    _, feed = feeds(bucket / "bucket/v3", server.address("bucket/v3"), tmp_path, remote_deadline_s=0.5)
    with rank(feed, DEFAULTS) as stream:
        next(stream)
        server.num_failures = 10**6
        forget_blocks(feed)
        why = r"^s3://bucket/v3/\S+(mp4|parquet): still cannot be read after \d+ s .OSError: .*(INTERNAL|500)"
        with pytest.raises(Unreachable, match=why) as caught:
            take(stream, 100)
        assert not stream.replaced
    assert SECRET not in str(caught.value)


def test_an_unreachable_store_is_no_fault_of_an_episode(server: S3Server, tmp_path: Path) -> None:
    server.num_failures = 10**6
    with pytest.raises(Unreachable, match="s3://bucket/v2/"):
        open_dataset(Source(path=server.address("bucket/v2")), str(tmp_path), remote_deadline_s=0.2)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://bucket/none?endpoint_override={host}&scheme=http", r"^s3://bucket/none: cannot be read"),
        ("s3://bucket/v3/meta?endpoint_override={host}&scheme=http", r"^s3://bucket/v3/meta is not a dataset"),
        ("s3://bucket/v3?endpoint=here", "unknown option endpoint; known: endpoint_override, scheme"),
        ("s3:///v3", "no bucket"),
        ("nosuch://bucket/v3", "nosuch"),
        ("ftp://me:hunter2@127.0.0.1:1/set", r"^ftp://127\.0\.0\.1:1/set: "),
    ],
)
def test_bad_addresses_are_one_line_without_secrets(
    address: str, message: str, server: S3Server, tmp_path: Path
) -> None:
    path = address.format(host=f"127.0.0.1:{server.server_port}")
    with pytest.raises(InputError, match=message) as caught:
        open_dataset(Source(path=path), str(tmp_path), remote_deadline_s=0)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_other_stores_go_through_fsspec(bucket: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in (bucket / "bucket/v3").rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/sets/v3/{path.relative_to(bucket / 'bucket/v3').as_posix()}", path.read_bytes())
    remote = open_dataset(Source(path="memory://sets/v3"), str(tmp_path))
    local = open_dataset(Source(path=str(bucket / "bucket/v3")), str(tmp_path))
    assert remote.revision == local.revision
    for here, there in zip(everything(local), everything(remote), strict=True):
        assert np.array_equal(here, there)


@pytest.fixture
def big(serve_s3: Callable[[Path], S3Server], tmp_path: Path) -> tuple[S3Server, bytes]:
    """A server of `bucket/folder/file`, and its 16 MiB."""
    data = np.random.default_rng(0).bytes(16 << 20)
    (tmp_path / "bucket/folder").mkdir(parents=True)
    (tmp_path / "bucket/folder/file").write_bytes(data)
    return serve_s3(tmp_path), data


def num_bytes(server: S3Server) -> int:
    return sum(stop - start for start, stop in server.spans())


def test_clips_of_a_dataset_larger_than_the_cache_cost_little_more_than_their_bytes(
    big: tuple[S3Server, bytes], tmp_path: Path
) -> None:
    (server, data), random = big, np.random.default_rng(1)
    store = open_store(server.address("bucket/folder"), blocks_dir=tmp_path / "kept", blocks_bytes=4 << 20)
    total = 0
    for wanted in random.integers(50_000, 500_000, 100).tolist():
        start = int(random.integers(0, len(data) - wanted))
        server.requests.clear()
        assert store.read("file", start, start + wanted) == data[start : start + wanted]
        assert num_bytes(server) <= wanted + (512 << 10)  # two blocks
        total += num_bytes(server)
        assert sum(p.stat().st_size for p in (tmp_path / "kept").rglob("*") if p.is_file()) <= 4 << 20
    assert total > len(data)  # much had to be fetched again


@pytest.mark.parametrize(("kept_bytes", "most_requests"), [(1 << 30, 9), (4 << 20, 64)])
def test_who_reads_a_file_from_end_to_end_waits_for_few_requests(
    kept_bytes: int, most_requests: int, big: tuple[S3Server, bytes], tmp_path: Path
) -> None:
    server, data = big
    store = open_store(server.address("bucket/folder"), blocks_dir=tmp_path / "kept", blocks_bytes=kept_bytes)
    file = store.open("file")
    assert not isinstance(file, str)
    assert b"".join(iter(lambda: file.read(10_000), b"")) == data
    assert num_bytes(server) == len(data)  # what came ahead was still there
    assert len(server.spans()) <= most_requests
    shutil.rmtree(tmp_path / "kept")
    server.requests.clear()
    assert store.read("file") == data
    assert len(server.spans()) == 1


def test_who_jumps_about_in_a_file_gets_no_more_than_he_wants(big: tuple[S3Server, bytes], tmp_path: Path) -> None:
    server, data = big
    store = open_store(server.address("bucket/folder"), blocks_dir=tmp_path / "kept", blocks_bytes=1 << 30)
    file = store.open("file")
    assert not isinstance(file, str)
    for place in (9 << 20, 2 << 20, 13 << 20, 11 << 20):
        file.seek(place)
        assert file.read(10_000) == data[place : place + 10_000]
    assert num_bytes(server) == 4 * (256 << 10)  # a block each


def test_the_rows_of_a_large_file_are_indexed_with_few_requests(
    serve_s3: Callable[[Path], S3Server], tmp_path: Path
) -> None:
    """Columns that nobody wants lie between the others."""
    names, random = [str(i) for i in range(64)], np.random.default_rng(0)
    root = tmp_path / "bucket/set"
    with LeRobotWriter(root, fps=10, cameras={}, state_names=names, action_names=names, robot_type="none") as writer:
        for _ in range(100):
            states, actions, torques = random.standard_normal((3, 200, 64), np.float32)
            writer.add_episode("task", states, actions, {}, {"torques": torques})
        writer.finish()
    server = serve_s3(tmp_path)
    open_dataset(Source(path=server.address("bucket/set")), str(tmp_path / "index"))
    (file,) = (root / "data").rglob("*.parquet")
    assert file.stat().st_size > 14 << 20
    assert len([path for path, _ in server.reads() if path.endswith(file.relative_to(root).as_posix())]) <= 10


def test_small_records_are_indexed_with_few_requests(
    make_datasets: ModuleType, serve_s3: Callable[[Path], S3Server], tmp_path: Path
) -> None:
    payloads = [np.random.default_rng(i).bytes(20_000) for i in range(400)]
    (tmp_path / "bucket/folder").mkdir(parents=True)
    (tmp_path / "bucket/folder/shard").write_bytes(b"".join(map(make_datasets.tf_record, payloads)))
    server = serve_s3(tmp_path)
    store = open_store(server.address("bucket/folder"), blocks_dir=tmp_path / "kept", blocks_bytes=1 << 30)
    assert [record.payload for record in iter_records(store, "shard")] == payloads
    assert num_bytes(server) == store.size("shard")
    assert len(server.spans()) <= 7
