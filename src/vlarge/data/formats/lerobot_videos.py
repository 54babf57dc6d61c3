"""Do the videos of a LeRobot dataset hold the frames that metadata promises? Only the files' tables are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

import numpy as np

from vlarge.data.check import BrokenFile, FaultLog, Span, misplaced_spans
from vlarge.data.fetch import Store, read_ahead
from vlarge.data.manifest import Listed
from vlarge.data.mp4 import VideoFile, read_video_file


class VideoCheck:
    """Places the episodes in the videos of one camera. After `run`: `first_frames` by number, `files`, sizes."""

    def __init__(self, store: Store, key: str, fps: float, log: FaultLog, on_file: Callable[[], None]) -> None:
        self._store = store
        self._key = key
        self._fps = fps
        self._log = log
        self._on_file = on_file
        self.files: dict[str, VideoFile] = {}
        self.first_frames: dict[int, int] = {}
        self.codec = ""
        self.sizes: dict[tuple[int, int], str] = {}  # (height, width) -> first file of that size

    def run(self, episodes: Collection[Listed]) -> None:
        """Place all listed episodes, those left out as well: what lies between others shows where these belong."""
        by_file: dict[str, list[Listed]] = defaultdict(list)
        for episode in episodes:
            if self._key in episode.videos:
                by_file[episode.videos[self._key][0]].append(episode)
            else:
                self._log.leave_out(episode.index, "missing_mp4", "meta", f"metadata names no file for {self._key}")
        for file, read in read_ahead(self._read, by_file, self._store.num_readers):
            self._check_file(file, read, by_file[file])
            self._on_file()

    def _read(self, file: str) -> VideoFile:
        return read_video_file(self._store, file)

    def _check_file(self, file: str, read: Callable[[], VideoFile], members: Sequence[Listed]) -> None:
        try:
            video = self.files[file] = read()
        except BrokenFile as error:
            for episode in members:
                self._log.leave_out(episode.index, error.kind, file, error.detail)
            return
        self.codec = self.codec or video.codec
        self.sizes.setdefault((video.height, video.width), file)
        spans = {}
        for episode in members:
            try:
                spans[episode.index] = self._place(video, episode)
            except BrokenFile as error:
                self._log.leave_out(episode.index, error.kind, file, error.detail)
        for span in misplaced_spans(list(spans.values())):
            detail = f"it would begin at frame {span.first} of the video, where frames of another episode are"
            self._log.leave_out(span.episode, "wrong_from_timestamp", file, detail)
        self.first_frames |= {index: span.first for index, span in spans.items()}

    def _place(self, video: VideoFile, episode: Listed) -> Span:
        start_s = episode.videos[self._key][1]
        first = 0 if start_s is None else self._first_frame(video, start_s)
        span = Span(episode.index, first, episode.length)
        if span.stop > video.num_frames:
            raise BrokenFile(
                "short_video",
                f"the video has {video.num_frames - first} frames for the episode's {episode.length} rows",
            )
        if not video.complete_F[first : span.stop].all():
            last = int(np.argmin(video.complete_F[first : span.stop]))
            raise BrokenFile(
                "truncated_mp4", f"the file ends at {video.file_bytes} bytes, before frame {last} of the episode"
            )
        if start_s is None and video.num_frames > episode.length:
            detail = f"the video has {video.num_frames} frames for {episode.length} rows; the first ones are used"
            self._log.report("long_video", video.file, detail, episode.index)
        if start_s is not None:
            self._check_times(video, span, start_s)
        return span

    def _first_frame(self, video: VideoFile, start_s: float) -> int:
        # The frame whose time is the start's; there must be one within half a frame.
        if not video.num_frames:
            return 0
        tick_s = float(video.time_base)
        if start_s > video.pts_F[-1] * tick_s + 0.5 / self._fps:
            return video.num_frames
        after = int(np.searchsorted(video.pts_F, round(start_s / tick_s)))  # whole: a fraction would copy the array
        near = [i for i in (after - 1, after) if 0 <= i < video.num_frames]
        first = min(near, key=lambda i: abs(video.pts_F[i] * tick_s - start_s))
        if abs(video.pts_F[first] * tick_s - start_s) >= 0.5 / self._fps:
            raise BrokenFile("wrong_from_timestamp", f"the video has no frame at {start_s:.4f} s")
        return first

    def _check_times(self, video: VideoFile, span: Span, start_s: float) -> None:
        # Frames are counted, but a video that skips one would make "the i-th" ambiguous: never guess.
        time_s = video.pts_F[span.first : span.stop] * float(video.time_base)
        off_s = time_s - start_s - np.arange(span.length) / self._fps
        if np.abs(off_s).max() >= 0.5 / self._fps:
            frame = int((np.abs(off_s) >= 0.5 / self._fps).argmax())
            raise BrokenFile(
                "irregular_video", f"frame {frame} of the episode is {off_s[frame]:.3f} s away from its place"
            )
