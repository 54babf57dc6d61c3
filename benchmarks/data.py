"""The data stream beside its decoder and beside LeRobot's loader, on generated datasets.

    python benchmarks/data.py --sets FOLDER

FOLDER holds two_cams_240x320, three_cams_480x640 and two_cams_480x640: LeRobot v3.0 datasets of AV1 videos with a key
frame at every other frame, as LeRobot records them. Takes about half an hour; keep the machine quiet. Writes its result
as JSON and Markdown to --out (beside this file).
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.data.bench import Measurement, measure
from vlarge.data.config import Source
from vlarge.data.index import open_dataset
from vlarge.data.order import Order

HERE = Path(__file__).parent
WINDOWS = (256, 1024, 4096, 16384, 0)  # samples; 0 for all
LAGS = (1, 64, 1024, 16384)
SMALL, LARGE, PAIR = "two_cams_240x320", "three_cams_480x640", "two_cams_480x640"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments = parser.parse_args()
    path = arguments.out / "data.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    found["hardware"] = f"{platform.machine()}, {os.cpu_count()} cores, no GPU"
    for name in arguments.only:
        found[name] = {"commit": commit.strip(), **PARTS[name](arguments.sets)}
        path.write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "data.md").write_text(as_markdown(found))
    print((arguments.out / "data.md").read_text())


def against_lerobot(sets: Path) -> dict:
    return {name: run(sets / name, against=("lerobot",)) for name in (SMALL, LARGE)}


def two_cameras(sets: Path) -> dict:
    """Two cameras of 480x640: as they are, and with frames kept at 224 pixels."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "direct": run(sets / PAIR),
            "direct, 224": run(sets / PAIR, size=224),
            "kept, 224": run_kept(sets / PAIR, folder),
        }


def kept_frames(sets: Path) -> dict:
    """Later epochs of the three-camera set with kept frames, beside LeRobot with a resize to 224."""
    with tempfile.TemporaryDirectory() as folder:
        return {LARGE: run_kept(sets / LARGE, folder, against=("lerobot",))}


def working_consumer(sets: Path) -> dict:
    """A consumer that works 0.2 s on each batch of 32: what it waits for data, over 100 batches."""
    settings = {"batch_size": 32, "samples": 3200, "step_s": 0.2, "rounds": 3}
    return {"direct": run(sets / PAIR, **settings), "direct, 224": run(sets / PAIR, size=224, **settings)}


def cores(sets: Path) -> dict:
    """The same stream on one core and on all."""
    all_cores = os.sched_getaffinity(0)
    found = {}
    for number in sorted({1, len(all_cores)}):
        os.sched_setaffinity(0, sorted(all_cores)[:number])
        found[str(number)] = {name: run(sets / name) for name in (SMALL, LARGE)}
    os.sched_setaffinity(0, all_cores)
    return found


def mixing(sets: Path) -> dict:
    """How well a window mixes a thousand episodes of 100 to 300 frames, beside a shuffle of everything."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 301, 1000)
    trait = rng.standard_normal(1000)  # of an episode: what its samples have in common
    return {str(window or "all"): mixing_of(Order(lengths, 0, window_samples=window), trait) for window in WINDOWS}


def mixing_of(order: Order, trait: np.ndarray) -> dict:
    samples = order.samples(0, order.num_samples)
    batches = samples[: len(samples) // 64 * 64, 0].reshape(-1, 64)
    clips = samples[:, 0] * 1000 + samples[:, 1] // order.clip_frames
    values = trait[samples[:, 0]]
    return {
        "episodes_per_64": float(np.mean([len(np.unique(batch)) for batch in batches])),
        "same_clip_next": float((np.diff(clips) == 0).mean()),
        "correlation": {str(lag): float(np.corrcoef(values[:-lag], values[lag:])[0, 1]) for lag in LAGS},
    }


def one_sample(sets: Path) -> dict:
    """Milliseconds of one core for one sample, by step, each alone and warm."""
    return {name: steps_of(sets / name) for name in (SMALL, LARGE)}


def steps_of(path: Path) -> dict:
    import av
    from av.video.reformatter import VideoReformatter

    dataset = open_dataset(Source(path=str(path)))
    key, cameras = dataset.camera_keys[0], len(dataset.camera_keys)
    file = dataset.store.path(dataset.episodes[0].videos[key].file)
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size]
        extradata = stream.codec_context.extradata
        name = stream.codec_context.name
    decoder = av.CodecContext.create(name, "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.extradata, decoder.thread_count = extradata, 1
    started_s = time.perf_counter()
    pictures = [p for data in packets[:200] for p in decoder.decode(av.Packet(data))] + decoder.decode(None)
    decode_s = (time.perf_counter() - started_s) / len(pictures)
    reformatter, slot = VideoReformatter(), np.zeros((pictures[0].height, pictures[0].width, 3), np.uint8)
    colour_s = best(lambda p: reformatter.reformat(p, format="rgb24"), pictures)
    rgb = [reformatter.reformat(p, format="rgb24").to_ndarray() for p in pictures[:8]]
    copy_s = best(lambda image: np.copyto(slot, image), rgb)
    seconds = {"decode": decode_s, "to RGB": colour_s, "into the batch": copy_s}
    return {step: 1000 * cameras * s for step, s in seconds.items()}


def best[T](work: Callable[[T], object], items: list[T]) -> float:
    """Seconds for one item: the quickest of five passes."""
    passes = []
    for _ in range(5):
        started_s = time.perf_counter()
        for item in items:
            work(item)
        passes.append((time.perf_counter() - started_s) / len(items))
    return min(passes)


def run(path: Path, **settings: Any) -> dict:
    print(path.name, settings)
    return measure(Measurement(path=str(path), **settings), print)


def run_kept(path: Path, folder: str, **settings: Any) -> dict:
    """The second time round: by then every frame has been kept."""
    run(path, size=224, rounds=1, samples=1, cache_dir=folder)
    return run(path, size=224, cache_dir=folder, **settings)


def as_markdown(found: dict) -> str:
    lines = ["# The data stream", "", f"`python benchmarks/data.py --sets FOLDER`, {found['hardware']}.", ""]
    for name, write in WRITERS.items():
        if name in found:
            part = {key: value for key, value in found[name].items() if key != "commit"}
            lines += [*write(part), "", f"At commit {found[name]['commit']}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def rates_table(title: str, part: dict) -> list[str]:
    peers = list(next(iter(part.values()))["peers"])
    heads = ["", "samples/s", "decode roofline", "of it", "decoded / used", "first batch", "service memory"]
    heads += [f"{peer} samples/s" for peer in peers] + [f"times {peer}" for peer in peers]
    rows = []
    for name, m in part.items():
        cells = [
            f"{m['samples_per_s']:.0f}",
            f"{m['roofline_samples_per_s']:.0f}",
            f"{m['of_roofline']:.0%}",
            f"{m['frames_decoded_per_used']:.3f}",
            f"{m['first_batch_s']:.1f} s",
            f"{m['service_memory_bytes'] / 2**30:.1f} GiB",
            *(f"{m['peers'][peer]['samples_per_s']:.0f}" for peer in peers),
            *(f"{m['ratio'][peer]:.1f}" for peer in peers),
        ]
        rows.append([name, *cells])
    return [f"## {title}", "", *table(heads, rows)]


def consumer_table(part: dict) -> list[str]:
    rows = [[name, f"{m['data_wait_fraction']:.2%}", f"{m['first_batch_s']:.1f} s"] for name, m in part.items()]
    return [
        "## A consumer that works 0.2 s on each batch of 32: two cameras of 480x640, the 100 batches after the first",
        "",
        *table(["", "waits", "first batch"], rows),
    ]


def cores_table(part: dict) -> list[str]:
    names = list(next(iter(part.values())))
    rows = [
        [number, *(f"{m[name]['samples_per_s']:.0f} ({m[name]['of_roofline']:.0%})" for name in names)]
        for number, m in part.items()
    ]
    return ["## By cores: samples/s, and of those cores' decode roofline", "", *table(["cores", *names], rows)]


def mixing_table(part: dict) -> list[str]:
    heads = ["window", "different episodes in 64", "next one from the same clip"]
    heads += [f"correlation at a lag of {lag}" for lag in LAGS]
    rows = [
        [
            name,
            f"{m['episodes_per_64']:.1f}",
            f"{m['same_clip_next']:.2%}",
            *(f"{m['correlation'][str(lag)]:+.4f}" for lag in LAGS),
        ]
        for name, m in part.items()
    ]
    title = "## How a window mixes: 1,000 episodes of 100 to 300 frames, clips of 16"
    text = "Correlation: of a number that all samples of an episode share, with the one so many samples later."
    return [title, "", text, "", *table(heads, rows)]


def steps_table(part: dict) -> list[str]:
    heads = ["", *next(iter(part.values()))]
    rows = [[name, *(f"{ms:.2f}" for ms in steps.values())] for name, steps in part.items()]
    return ["## Milliseconds of one core for one sample", "", *table(heads, rows)]


def table(heads: list, rows: list) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


WRITERS: dict[str, Callable[[dict], list[str]]] = {
    "against_lerobot": partial(rates_table, "Beside LeRobot's loader, shuffled, uint8, a worker for each core"),
    "two_cameras": partial(rates_table, "Two cameras of 480x640"),
    "kept_frames": partial(rates_table, "Later epochs with kept frames, beside LeRobot with a resize to 224"),
    "working_consumer": consumer_table,
    "cores": cores_table,
    "mixing": mixing_table,
    "one_sample": steps_table,
}
PARTS: dict[str, Callable[[Path], dict]] = {
    "against_lerobot": against_lerobot,
    "two_cameras": two_cameras,
    "kept_frames": kept_frames,
    "working_consumer": working_consumer,
    "cores": cores,
    "mixing": mixing,
    "one_sample": one_sample,
}


if __name__ == "__main__":
    main()
