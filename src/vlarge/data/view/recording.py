"""An episode for the Rerun viewer."""

from __future__ import annotations

from pathlib import Path

from vlarge.contracts import InputError
from vlarge.data.view.scene import Scene

JPEG_QUALITY = 90


def write_recording(scene: Scene, path: Path) -> None:
    """Write pictures, numbers and tasks by frame and time as an .rrd file. Raises InputError without rerun-sdk."""
    try:
        import rerun as rr
    except ImportError:
        raise InputError(
            f"{path.name} needs the Rerun viewer's library: pip install 'vlarge[view]', or name a .png or .mp4 file"
        ) from None
    recording = rr.RecordingStream("vlarge", recording_id=scene.title)
    recording.save(str(path))
    views = {camera: scene.pictures(camera, range(scene.episode.length)) for camera in scene.cameras}
    for curves in scene.curves:
        series = rr.SeriesLines(names=list(curves.names))
        recording.log(curves.title.lower(), series, static=True)
    changes = dict(scene.tasks)
    for frame in range(scene.episode.length):
        recording.set_time("frame", sequence=frame)
        recording.set_time("time", duration=frame / scene.dataset.fps)
        for camera, view in views.items():
            recording.log(camera, rr.Image(next(view)).compress(jpeg_quality=JPEG_QUALITY))
        for curves in scene.curves:
            recording.log(curves.title.lower(), rr.Scalars(curves.values_TA[frame]))
        if frame in changes:
            recording.log("task", rr.TextDocument(changes[frame]))
    recording.disconnect()
