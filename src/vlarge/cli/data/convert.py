"""`vlarge data convert`: any readable dataset as LeRobot v3.0."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from vlarge.cli.data.opening import Keys, telling
from vlarge.cli.show import console, print_json, print_table, progress

if TYPE_CHECKING:
    from vlarge.data.convert.plan import CameraPlan
    from vlarge.data.convert.run import Conversion
    from vlarge.data.encode import Encoding


@dataclass(frozen=True)
class Convert(Keys):
    """Write a dataset as LeRobot v3.0, resized if asked for, and check the copy frame by frame.

    States, actions, tasks and pictures are kept; other columns are not, and are named. Episodes in quarantine, and
    those with a number that is not finite, are left out and named; the others get new numbers from 0 on
    (meta/source.json says which). Interrupted or killed, the same command goes on where it was.

    Example: vlarge data convert my_dataset small_dataset --size 224
    """

    source: tyro.conf.Positional[str]
    """A dataset folder, an object store's address, or hf://user/name."""
    out: tyro.conf.Positional[Path]
    """The new dataset's folder, outside the source; it must not exist. While converting, twice the new dataset's size
    is needed."""
    size: int | None = None
    """Resize pictures to SIZE x SIZE, padded as in training."""
    codec: str | None = None
    """h264, hevc or av1. Without it and --gop, --crf and --size, video is copied as it is where it can be."""
    gop: int | None = None
    """Frames from one key frame to the next."""
    crf: int | None = None
    """Quality of the video, 0 is best."""
    fps: float | None = None
    """Frames per second, of a dataset that does not say."""
    cameras: tuple[str, ...] = ()
    """Only these cameras."""
    quarantine: Path | None = None
    """Leave out what this list of `vlarge data check --quarantine` names."""
    workers: int = 0
    """Threads; 0: one for each processor."""
    json: bool = False
    """Print JSON."""


def convert(arguments: Convert) -> int:
    from vlarge.contracts import InputError
    from vlarge.data.convert.run import Converter

    if arguments.workers < 0:
        raise InputError(f"workers is {arguments.workers}; give a number of threads, or 0 for one per processor")
    start_s = time.monotonic()
    with telling(arguments.source) as on_progress:
        converter = Converter(
            arguments.source_at(
                arguments.source, cameras=arguments.cameras, quarantine=str(arguments.quarantine or "")
            ),
            arguments.out,
            size=arguments.size,
            encoding=_encoding(arguments),
            fps=arguments.fps,
            num_workers=arguments.workers or len(os.sched_getaffinity(0)),
            on_progress=on_progress,
        )
    with progress("converting", converter.num_steps) as tell:
        try:
            done = converter.run(tell)
        except KeyboardInterrupt:
            print("interrupted; the same command goes on from here", file=sys.stderr)
            raise
    answer = _answer(arguments.out, done, time.monotonic() - start_s)
    if arguments.json:
        print_json(answer)
    else:
        _print(answer)
    return 0


def _encoding(arguments: Convert) -> Encoding | None:
    from vlarge.data.encode import Encoding

    asked = {name: getattr(arguments, name) for name in ("codec", "gop", "crf")}
    asked = {name: value for name, value in asked.items() if value is not None}
    return Encoding(**asked) if asked else None


def _answer(out: Path, done: Conversion, wall_s: float) -> dict[str, Any]:
    dataset, store = done.dataset, done.dataset.store
    files = {e.table_file for e in dataset.episodes} | {v.file for e in dataset.episodes for v in e.videos.values()}
    return {
        "path": str(out),
        "num_episodes": len(dataset.episodes),
        "num_frames": dataset.num_frames,
        "cameras": {camera.key: _camera(camera, done) for camera in done.cameras},
        "source_episodes": [e.index for e in dataset.episodes],
        "left_out": [asdict(fault) for fault in done.left_out],
        "dropped_features": list(done.dropped),
        "source_bytes": sum(store.size(file) for file in files if store.exists(file)),
        "bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        "wall_s": round(wall_s, 3),
        "frames_per_s": round(dataset.num_frames * len(done.cameras) / wall_s, 1),
    }


def _camera(camera: CameraPlan, done: Conversion) -> dict[str, Any]:
    """psnr_db: of RGB against the source's picture as training would see it; 99 for equal pictures."""
    lengths = {e.index: e.length for e in done.dataset.episodes}
    own = [likeness for likeness in done.likeness if likeness.camera == camera.key]
    mean_db = sum(like.mean_psnr_db * lengths[like.episode] for like in own) / sum(lengths.values())
    return {
        "height": camera.height,
        "width": camera.width,
        "video": "encoded" if camera.encoding else "copied",
        "codec": camera.encoding.codec if camera.encoding else done.dataset.cameras[camera.key].codec,
        "psnr_db": round(mean_db, 2),
        "min_psnr_db": round(min(like.min_psnr_db for like in own), 2),
    }


def _print(answer: dict[str, Any]) -> None:
    from vlarge.data.check import Fault, describe_left_out

    paper = console()
    ratio = answer["bytes"] / max(1, answer["source_bytes"])
    paper.print(
        f"\n{answer['path']}: {answer['num_episodes']} episodes, {answer['num_frames']} frames, "
        f"{answer['bytes'] / 1e6:.1f} MB ({ratio:.0%} of the source), in {answer['wall_s']:.1f} s",
        markup=False,
    )
    rows = [
        (key, f"{c['height']} × {c['width']}", f"{c['video']} ({c['codec']})", _likeness(c))
        for key, c in answer["cameras"].items()
    ]
    print_table("Cameras", ("key", "height × width", "video", "compared with the source"), rows)
    for line in describe_left_out(Fault(**fault) for fault in answer["left_out"]):
        paper.print(f"{line}; the others have new numbers, see meta/source.json", markup=False)
    if answer["dropped_features"]:
        paper.print(f"not in the copy: {', '.join(answer['dropped_features'])}", markup=False)


def _likeness(camera: dict[str, Any]) -> str:
    if camera["video"] == "copied":
        return "equal, frame by frame"
    return f"{camera['psnr_db']:.1f} dB, worst frame {camera['min_psnr_db']:.1f} dB"
