"""Do the videos of a LeRobot dataset hold the frames that metadata promises? Only the files' tables are read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from vlarge.data.check import BrokenFile, FaultLog
from vlarge.data.fetch import Store, read_ahead
from vlarge.data.manifest import Listed
from vlarge.data.mp4 import VideoFile, read_video_file
from vlarge.data.spans import ELSEWHERE, Judgement, Span, judge

HALF_FRAME = 0.49  # a time this far from a frame's, in frames, is nobody's
DETAILS = {
    "wrong_from_timestamp": "it would begin at {start:g} s of the video, where it does not belong",
    "short_video": "the video has fewer frames for it than its {length} rows",
    "long_video": "the video has frames that no episode accounts for; nothing says which ones they are",
}


class VideoCheck:
    """Places the episodes in the videos of one camera. After `run`: `first_frames` by number, `files`, sizes.

    num_rows: rows of each episode number found in data files; doubtful: episodes whose number no file confirms.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        fps: float,
        log: FaultLog,
        on_file: Callable[[], None],
        num_rows: Mapping[int, int],
        doubtful: Collection[int],
    ) -> None:
        self._store = store
        self._key = key
        self._fps = fps
        self._log = log
        self._on_file = on_file
        self._num_rows = num_rows
        self._doubtful = doubtful
        self._lengths: dict[int, int] = dict(num_rows)
        self._surplus: dict[int, tuple[str, int]] = {}  # episode -> (file, frames beyond its rows)
        self.files: dict[str, VideoFile] = {}
        self.first_frames: dict[int, int] = {}
        self.codec = ""
        self.sizes: dict[tuple[int, int], str] = {}  # (height, width) -> first file of that size
        self.turned: list[str] = []  # files that ask to be shown turned or mirrored

    def run(self, episodes: Collection[Listed]) -> None:
        """Place all listed episodes, those left out as well: what lies between others shows where these belong."""
        by_file: dict[str, list[Listed]] = defaultdict(list)
        for episode in episodes:
            self._lengths[episode.index] = self._lengths.get(episode.index, episode.length)
            if self._key in episode.videos:
                by_file[episode.videos[self._key].file].append(episode)
            else:
                self._log.leave_out(episode.index, "missing_mp4", "meta", f"metadata names no file for {self._key}")
        for file, read in read_ahead(self._read, by_file, self._store.num_readers):
            self._check_file(file, read, by_file[file])
            self._on_file()
        self._judge_surplus()

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
        if video.is_turned:
            self.turned.append(file)
        lengths = self._fitting_lengths(video, members)
        origin_s = self._origin_s(video, sum(lengths.values()))
        spans = [self._span(video, e, lengths[e.index], origin_s) for e in members]
        for span in spans:
            self._check_content(video, span)
        judged = judge(spans, video.num_frames, self._lengths, self._doubtful)
        for episode, span in zip(members, spans, strict=True):
            self._note(video, episode, span, judged[episode.index])
        self.first_frames |= {span.episode: span.first for span in spans}

    def _fitting_lengths(self, video: VideoFile, members: Sequence[Listed]) -> dict[int, int]:
        # Where metadata and rows differ about lengths, those that add up to the video are the likelier ones.
        listed = {e.index: e.length for e in members}
        counted = {index: self._num_rows.get(index) or length for index, length in listed.items()}
        return counted if sum(counted.values()) == video.num_frames else listed

    def _origin_s(self, video: VideoFile, num_promised: int) -> float:
        # Some files start late as a whole. That is harmless only where no frame is missing.
        first_s = video.time_s(0) if video.num_frames else 0.0
        return first_s if num_promised == video.num_frames or abs(first_s) * self._fps < HALF_FRAME else math.nan

    def _span(self, video: VideoFile, episode: Listed, length: int, origin_s: float) -> Span:
        place = episode.videos[self._key]
        if place.start_s is None:
            return Span(episode.index, 0, length)
        first = self._frame_at(video, place.start_s + origin_s)
        span_s = place.stop_s - place.start_s if place.stop_s is not None else math.nan
        end = first + round(span_s * self._fps) if first >= 0 and abs(span_s) < 1e9 else None
        return Span(episode.index, first, length, end)

    def _frame_at(self, video: VideoFile, time_s: float) -> int:
        # The frame of that time; the one after the last, and so on, where the video has ended.
        if not math.isfinite(time_s) or not video.num_frames:
            return ELSEWHERE
        beyond = (time_s - video.time_s(-1)) * self._fps
        if beyond > 1 - HALF_FRAME:
            return video.num_frames - 1 + round(min(beyond, 2**62))
        ticks = round(min(max(time_s, -1e9), 1e9) / video.time_base)
        after = int(np.searchsorted(video.pts_F, ticks))  # whole: a fraction would copy the array
        near = [i for i in (after - 1, after) if 0 <= i < video.num_frames]
        first = min(near, key=lambda i: abs(video.time_s(i) - time_s))
        return first if abs(video.time_s(first) - time_s) * self._fps < HALF_FRAME else ELSEWHERE

    def _check_content(self, video: VideoFile, span: Span) -> None:
        # Whether the frames of a span are in the file and follow one another in time.
        stop = min(span.stop, video.num_frames)
        if span.first < 0 or span.first >= stop:
            return
        complete = video.complete_F[span.first : stop]
        if not complete.all():
            detail = (
                f"the file ends at {video.file_bytes} bytes, before frame {int(np.argmin(complete))} of the episode"
            )
            self._log.leave_out(span.episode, "truncated_mp4", video.file, detail)
        times = video.pts_F[span.first : stop] * float(video.time_base)
        off_s = times - times[0] - np.arange(len(times)) / self._fps
        if np.abs(off_s).max() * self._fps >= HALF_FRAME:
            frame = int((np.abs(off_s) * self._fps >= HALF_FRAME).argmax())
            detail = f"frame {frame} of the episode is {off_s[frame]:.3f} s away from its place"
            self._log.leave_out(span.episode, "irregular_video", video.file, detail)

    def _note(self, video: VideoFile, episode: Listed, span: Span, judgement: Judgement) -> None:
        if judgement.kind:
            start_s = episode.videos[self._key].start_s
            words = DETAILS[judgement.kind].format(start=start_s or 0.0, length=episode.length)
            detail = f"{words} (it has {video.num_frames} frames)"
            self._log.leave_out(episode.index, judgement.kind, video.file, detail)
        else:
            self._surplus[episode.index] = video.file, judgement.surplus

    def _judge_surplus(self) -> None:
        # A recorder may always take more pictures than rows; where only some episodes have more, those are damaged.
        habits = {surplus for index, (_, surplus) in self._surplus.items() if not self._log.is_out(index)}
        for index, (file, surplus) in self._surplus.items():
            if surplus and len(habits) > 1:
                detail = f"the video has {surplus} frames more than its rows; nothing says which ones"
                self._log.leave_out(index, "long_video", file, detail)
        if len(habits) == 1 and (surplus := habits.pop()):
            file = next(iter(self._surplus.values()))[0]
            detail = f"{self._key} has {surplus} frames more than rows in every episode; the first ones are used"
            self._log.report("long_video", file, detail)
