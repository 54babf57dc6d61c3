"""`vlarge data view`: one episode to look at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlarge.cli.data.opening import Keys, telling
from vlarge.cli.show import console, print_json

if TYPE_CHECKING:
    from vlarge.data.view.scene import Scene

KINDS = (".png", ".mp4", ".rrd")


@dataclass(frozen=True)
class View(Keys):
    """Draw one episode: frames of each camera, curves of state and action, task and faults.

    Example: vlarge data view my_dataset --episode 3
    """

    path: tyro.conf.Positional[str]
    """A dataset folder, an object store's address, or hf://user/name."""
    episode: int
    """The episode's number in the dataset."""
    out: Path | None = None
    """A new file: .png (a sheet), .mp4 (a film) or .rrd (for the Rerun viewer, with the extra `view`).
    Default: NAME-episode-N.png here."""
    camera: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Only this camera, by its name or the last part of it. Repeat the option for several."""
    json: bool = False
    """Print JSON."""


def view(arguments: View) -> int:
    from vlarge.contracts import InputError
    from vlarge.data.view.scene import open_scene

    if arguments.out is not None and arguments.out.suffix not in KINDS:
        raise InputError(f"{arguments.out}: the name of the file must end with {', '.join(KINDS)}")
    if arguments.out is not None:
        _check_absent(arguments.out)
    with telling(arguments.path) as on_progress:
        scene = open_scene(arguments.source_at(arguments.path), arguments.episode, arguments.camera, on_progress)
    out = arguments.out or Path(f"{Path(str(scene.dataset.root)).resolve().name}-episode-{arguments.episode}.png")
    _check_absent(out)
    _write(scene, out)
    if arguments.json:
        answer = {"path": str(out), "episode": arguments.episode, "num_frames": scene.episode.length}
        print_json({**answer, "cameras": list(scene.cameras), "faults": list(scene.faults)})
    else:
        console().print(f"{out}: {scene.title}, {scene.subtitle}", markup=False)
    return 0


def _check_absent(out: Path) -> None:
    from vlarge.contracts import InputError

    if out.exists():
        raise InputError(f"{out} exists; name another file with --out, or remove it first")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the folder {out.parent} does not exist; make it first")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out}: the folder {out.parent} cannot be written to; name another with --out")


def _write(scene: Scene, out: Path) -> None:
    """The file appears whole or not at all."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        if out.suffix == ".png":
            from vlarge.data.view.sheet import draw_sheet

            draw_sheet(scene).save(unfinished, "PNG")
        elif out.suffix == ".mp4":
            from vlarge.data.view.film import write_film

            write_film(scene, unfinished)
        else:
            from vlarge.data.view.recording import write_recording

            write_recording(scene, unfinished)
        unfinished.rename(out)
    finally:
        unfinished.unlink(missing_ok=True)
