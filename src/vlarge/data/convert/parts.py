"""The video of one episode and camera, made once: what an interrupted conversion finds when it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from vlarge.data.check import BrokenFile
from vlarge.data.convert.plan import CameraPlan
from vlarge.data.encode import encode_clip
from vlarge.data.formats.write import checked_frames
from vlarge.data.index import Dataset
from vlarge.data.join import Clip
from vlarge.data.manifest import Episode
from vlarge.data.mp4 import read_local_video
from vlarge.data.stats import PixelHistogram


class Stopped(Exception):
    """Another part of the conversion has failed, or the user has interrupted it."""


@dataclass(frozen=True)
class Parts:
    """Makes and finds the parts of a conversion below `folder`. Threads may share one; each makes other parts.

    size: what pictures are resized to; None keeps theirs. stop: set to end all work at the next frame.
    """

    folder: Path
    dataset: Dataset
    size: int | None
    rate: Fraction
    stop: threading.Event

    def source_frames(self, episode: Episode, camera: CameraPlan) -> Iterator[np.ndarray]:
        """The pictures as the copy should show them, uint8 [H, W, 3], one at a time."""
        for image in self.dataset.iter_frames(episode, camera.key, range(episode.length), self.size):
            if self.stop.is_set():
                raise Stopped
            yield image

    def make(self, episode: Episode, camera: CameraPlan) -> None:
        """Make one part. It is there whole or not at all: what is renamed last makes it count."""
        counts, video = self._counts(episode, camera), self._video(episode, camera)
        counts.parent.mkdir(parents=True, exist_ok=True)
        pixels = PixelHistogram()
        where = f"episode {episode.index}, {camera.key}"
        frames = checked_frames(where, self.source_frames(episode, camera), camera.shape, pixels)
        if camera.encoding is None:
            for _ in frames:
                pass
        else:
            unfinished = video.with_suffix(".partial")
            encode_clip(unfinished, frames, camera.encoding, self.rate)
            unfinished.rename(video)
        unfinished = counts.with_suffix(".partial")
        with unfinished.open("wb") as file:
            np.save(file, pixels.counts)
        unfinished.rename(counts)

    def is_made(self, episode: Episode, camera: CameraPlan) -> bool:
        if not self._counts(episode, camera).is_file():
            return False
        if camera.encoding is None:
            return True
        try:
            return bool(read_local_video(self._video(episode, camera)).complete_F.sum() == episode.length)
        except BrokenFile:
            return False

    def clip(self, episode: Episode, camera: CameraPlan) -> Clip:
        """A part that is made."""
        pixels = PixelHistogram()
        pixels.counts = np.load(self._counts(episode, camera), allow_pickle=False)
        if camera.encoding is not None:
            return Clip(self._video(episode, camera), 0, episode.length, pixels, camera.encoding)
        part = episode.videos[camera.key]
        return Clip(Path(self.dataset.store.path(part.file)), part.first_frame, episode.length, pixels)

    def remove(self, episode: Episode, camera: CameraPlan) -> None:
        """Forget a part, so that it is made again."""
        self._counts(episode, camera).unlink(missing_ok=True)
        self._video(episode, camera).unlink(missing_ok=True)

    def _counts(self, episode: Episode, camera: CameraPlan) -> Path:
        return self.folder / f"camera-{camera.number:02d}" / f"episode-{episode.index:06d}.npy"

    def _video(self, episode: Episode, camera: CameraPlan) -> Path:
        return self._counts(episode, camera).with_suffix(".mp4")
