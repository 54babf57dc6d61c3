"""How fast a dataset streams, beside what its decoder could do and beside LeRobot's loader, measured in turn."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.config import Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.service.client import ServiceProcess, stream_from
from vlarge.data.service.feed import Feed
from vlarge.data.service.plan import Plan
from vlarge.data.stats import dataset_stats
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation

WARMUP_BATCHES = 10  # of a peer
WARMUP_SAMPLES = 4096  # of the stream: by then its shared memory has been touched once
LEAST_S = 6.0  # of measuring: less says little on a busy machine


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured. size: pictures are resized to [size, size]; 0 leaves them as they are.

    step_s: how long the consumer works on a batch. cache_dir: where frames are kept, "" for nowhere.
    """

    path: str
    state_key: str = Source.state_key
    action_key: str = Source.action_key
    size: int = 0
    batch_size: int = 16
    action_horizon: int = 50
    samples: int = 2000
    rounds: int = 3
    step_s: float = 0.0
    workers: int = 0
    window_samples: int = 4096
    cache_dir: str = ""
    against: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        return Source(path=self.path, state_key=self.state_key, action_key=self.action_key)


def measure(m: Measurement, tell: Callable[[str], None]) -> dict[str, Any]:
    """See `vlarge data bench --json`. Raises InputError for a dataset that cannot be streamed, or a missing peer."""
    dataset = open_dataset(m.source)
    feed = feed_of(m, dataset)
    rounds: list[dict[str, Any]] = []
    for number in range(m.rounds):
        found = stream_rate(m, feed, tell)
        found["roofline"] = roofline(dataset) / max(1, len(dataset.camera_keys))
        for peer in m.against:
            found[peer] = PEERS[peer](m, dataset)
        tell(f"round {number + 1}: " + ", ".join(f"{k} {v:.4g}" for k, v in found.items()))
        rounds.append(found)
    middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    plan = feed.plan([dataset])
    rate = middle["samples_per_s"]
    return {
        "samples_per_s": rate,
        "frames_decoded_per_used": decoded_per_used(plan),
        "frames_decoded_per_used_full_shuffle": decoded_per_used(replace(feed, window_samples=0).plan([dataset])),
        "roofline_samples_per_s": _or_none(middle["roofline"]),
        "of_roofline": _or_none(rate / middle["roofline"]),
        "data_wait_fraction": middle["data_wait_fraction"],
        "first_batch_s": middle["first_batch_s"],
        "episodes_per_64": episodes_per(plan, 64),
        "service_memory_bytes": max(r["service_memory_bytes"] for r in rounds),
        "peers": {peer: {"samples_per_s": middle[peer]} for peer in m.against},
        "ratio": {peer: statistics.median(r["samples_per_s"] / r[peer] for r in rounds) for peer in m.against},
        "rounds": [{key: _or_none(value) for key, value in r.items()} for r in rounds],
        "cores": len(os.sched_getaffinity(0)),
    }


def feed_of(m: Measurement, dataset: Dataset) -> Feed:
    """The feed of a run that has no model: every camera, quantile statistics, the byte tokenizer."""
    stats = dataset_stats(dataset)
    sizes = {(m.size, m.size) if m.size else (c.height, c.width) for c in _used_cameras(dataset)} or {(1, 1)}
    if len(sizes) > 1:
        raise InputError(f"{m.path}: its cameras have several sizes; make them equal with --size")
    (shape,) = sizes
    preparation = Preparation(
        image_size=shape[0],
        action_horizon=m.action_horizon,
        cameras=dataset.camera_keys,
        tokenizer=ByteTokenizer(),
        state_normalizer=Normalizer("quantile", stats[STATE]),
        action_normalizer=Normalizer("quantile", stats[ACTION]),
        max_text_tokens=512,
    )
    return Feed(
        sources=(m.source,),
        preparations=(preparation.to_json(),),
        image_shape=shape,
        seed=0,
        batch_size=m.batch_size,
        window_samples=m.window_samples,
        num_threads=m.workers,
        keep_small=False,  # the decoder is what is measured, not memory
        cache_dir=m.cache_dir,
        cache_bytes=1 << 40,
    )


def _used_cameras(dataset: Dataset) -> list[Any]:
    return [dataset.cameras[key] for key in dataset.camera_keys]


def stream_rate(m: Measurement, feed: Feed, tell: Callable[[str], None]) -> dict[str, Any]:
    """Samples a second once warm, and the share of that time that the consumer waited."""
    start_s = time.perf_counter()
    process = ServiceProcess(feed)
    stream = stream_from(process.address, 0, feed.image_shape, process, tell=tell)
    try:
        next(stream)
        first_s = time.perf_counter() - start_s
        # The waits of a consumer that works count from the first batch on.
        for _ in range(0 if m.step_s else -(-WARMUP_SAMPLES // m.batch_size)):
            next(stream)
        waited_s, start_s, num_samples = stream.wait_s, time.perf_counter(), 0
        while num_samples < m.samples or time.perf_counter() - start_s < LEAST_S:
            time.sleep(m.step_s)
            num_samples += sum(batch.num_samples for batch in next(stream))
        took_s = time.perf_counter() - start_s
        return {
            "samples_per_s": num_samples / took_s,
            "data_wait_fraction": (stream.wait_s - waited_s) / took_s,
            "first_batch_s": first_s,
            "service_memory_bytes": memory_of(process.pid),
        }
    finally:
        stream.close()


def _or_none(value: float) -> float | None:
    # JSON has no NaN.
    return None if math.isnan(value) else value


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that are there."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children: their own, and what the one that shares most of it shares."""
    lines = [Path(f"/proc/{p}/status").read_text().splitlines() for p in (pid, *children_of(pid))]
    fields = [dict(line.split(":", 1) for line in each) for each in lines]
    own, shared = ([1024 * int(f[name].split()[0]) for f in fields] for name in ("RssAnon", "RssShmem"))
    return sum(own) + max(shared)


def decoded_per_used(plan: Plan) -> float:
    """Frames decoded for each frame that is used, over one epoch of the first dataset: what is planned, exactly."""
    part = plan.parts[0]
    used = decoded = 0
    for clip in plan.clips(0):
        if clip.epoch > 0:
            break
        used += len(clip.frames) * part.num_images
        episode = part.dataset.episodes[clip.episode]
        decoded += sum(part.dataset.num_packets(episode, key, clip.frames) for key in part.preparation.cameras)
    return decoded / used if used else 1.0


def episodes_per(plan: Plan, num_samples: int) -> float:
    """Different episodes among so many samples in a row: the mean over the first epoch."""
    order = plan.mixture.orders[0]
    samples = order.samples(0, order.num_samples // num_samples * num_samples)[:, 0].reshape(-1, num_samples)
    return (
        float(np.mean([len(np.unique(row)) for row in samples])) if len(samples) else float(len(plan.parts[0].spans_S3))
    )


def roofline(dataset: Dataset) -> float:
    """Frames a second when every core decodes the dataset's videos from front to back to RGB, and does nothing else.

    NaN where there is no local video.
    """
    files = sorted({part.file for e in dataset.episodes for part in e.videos.values()})
    paths = [str(path) for path in map(dataset.store.local_path, files) if path]
    if not paths:
        return math.nan
    context = multiprocessing.get_context("spawn")
    num = len(os.sched_getaffinity(0))
    barrier, counts = context.Barrier(num), context.Queue()
    workers = [context.Process(target=_decode, args=(paths, k, LEAST_S, barrier, counts)) for k in range(num)]
    for worker in workers:
        worker.start()
    total: int = sum(counts.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total / LEAST_S


def _decode(paths: list[str], first: int, seconds: float, barrier: Any, counts: Any) -> None:
    import av

    barrier.wait()
    end_s, num_frames, number = time.perf_counter() + seconds, 0, first
    while time.perf_counter() < end_s:
        with contextlib.suppress(av.error.FFmpegError), av.open(paths[number % len(paths)]) as container:
            container.streams.video[0].codec_context.thread_count = 1
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24")
                num_frames += 1
                if time.perf_counter() >= end_s:
                    break
        number += 1
    counts.put(num_frames)


def lerobot_rate(m: Measurement, dataset: Dataset) -> float:
    """Samples a second of LeRobot's LeRobotDataset and torch's DataLoader: shuffled, uint8, a worker per core."""
    try:
        import torch
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise InputError(f"--against lerobot needs {error.name}: pip install 'vlarge[lerobot]'") from error

    resize = None
    if m.size:
        from torchvision.transforms.v2 import Resize

        resize = Resize((m.size, m.size))
    reader = LeRobotDataset(
        "local/bench",
        root=dataset.root,
        delta_timestamps={dataset.action_key: [i / dataset.fps for i in range(m.action_horizon)]},
        image_transforms=resize,
        return_uint8=True,
    )
    batches = torch.utils.data.DataLoader(
        reader,
        batch_size=m.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=len(os.sched_getaffinity(0)),
        prefetch_factor=4,
        persistent_workers=True,
        multiprocessing_context="spawn",
        generator=torch.Generator().manual_seed(0),
    )
    return _loader_rate(batches, m)


def _loader_rate(batches: Any, m: Measurement) -> float:
    num_samples, num_batches, start_s = 0, 0, 0.0
    while True:
        for batch in batches:
            num_batches += 1
            if num_batches == WARMUP_BATCHES:
                start_s = time.perf_counter()
            elif num_batches > WARMUP_BATCHES:
                num_samples += len(batch["index"])
            if num_samples >= min(m.samples, 640):
                return num_samples / (time.perf_counter() - start_s)


PEERS: dict[str, Callable[[Measurement, Dataset], float]] = {"lerobot": lerobot_rate}
