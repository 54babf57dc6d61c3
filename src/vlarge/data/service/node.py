"""The data service of one node: threads decode what is planned straight into batches, ahead of its ranks."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from vlarge.contracts import InputError, Sample, SampleId
from vlarge.data.cache import ByteCache
from vlarge.data.check import Unreachable
from vlarge.data.manifest import EpisodeTable
from vlarge.data.order import mix
from vlarge.data.service.arena import Arena
from vlarge.data.service.batches import OpenBatch, Ready, Replacement
from vlarge.data.service.decoder import Crashed, Decoder, Pictures, image_of
from vlarge.data.service.plan import Clip, Plan
from vlarge.data.transforms.augment import draw

MAX_REPLACEMENTS = 32  # tries for one sample
FITTING_REPLACEMENTS = 16  # of these, only those that cost no more tokens
PLANNED_CLIPS = 256
FRAMES_AT_ONCE = 16  # asked of a decoder together: each request has its price
START_BATCHES = 4  # ready before a rank begins, so that the first steps of many ranks do not wait in turn
START_S = 1.0  # but it waits no longer for them
TABLE_BYTES = 128 << 20  # of recently read episodes' states and actions


@dataclass(frozen=True)
class Activity:
    """What a thread is doing, and since when (of `time.monotonic`)."""

    stage: str
    detail: str
    since_s: float


class Closed(Exception):
    """The service was closed while a thread waited."""


class NodeService:
    """Decodes for the ranks of one node from `start_step` on; `take` hands each rank its batches, in order.

    Clips are read in the order in which they are first needed, by `num_threads` threads, while there is room for the
    batches that they go to: `max_batches` are open, ready or held by ranks at most. A sample that cannot be read is
    replaced by another of its dataset, always the same one. Other errors reach every rank.
    """

    def __init__(
        self,
        plan: Plan,
        start_step: int,
        *,
        image_shape: tuple[int, int],
        num_threads: int,
        max_batches: int,
        make_decoder: Callable[[Arena], Decoder],
    ) -> None:
        self.plan = plan
        self.max_batches = max_batches
        self._image_shape = image_shape
        most_images = max(part.num_images for part in plan.parts) * plan.batch_size
        self.arena = Arena(most_images * int(np.prod(image_shape)) * 3)
        self._state = threading.Condition()
        self._open: dict[tuple[int, int], OpenBatch] = {}
        self._ready: dict[tuple[int, int], Ready] = {}
        self._start_step = start_step
        self._next_step = [start_step] * plan.node.ranks_per_node
        self._opened = start_step  # steps below are open, ready or gone
        self._clips: deque[Clip] = deque()  # planned, and not yet begun
        self._error: BaseException | None = None
        self._closed = False
        self.activities: dict[str, Activity] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._episode = lru_cache(maxsize=1024)(lambda part, i: plan.parts[part].dataset.episodes[i])
        self._stamp = lru_cache(maxsize=4096)(lambda part, file: plan.parts[part].dataset.stamp_of(file))
        self._tables: ByteCache[tuple[int, int], EpisodeTable] = ByteCache(self._read_table, TABLE_BYTES)
        self._decoded_before = [part.dataset.num_decoded for part in plan.parts]
        self._threads = [self._start("plan", self._plan_ahead, start_step)]
        self._decoders = [make_decoder(self.arena) for _ in range(num_threads)]
        self._threads += [self._start(f"decode-{i}", self._load_ahead, d) for i, d in enumerate(self._decoders)]

    def take(self, rank: int, timeout_s: float) -> Ready | None:
        """The next batch of a rank of this node; None when there is none yet. Raises what stopped the service.

        The first one waits until a few more are ready, for `START_S` at most.
        """
        key = self._next_step[rank], rank
        with self._state:
            self._state.wait_for(lambda: key in self._ready or self._error or self._closed, timeout_s)
            if key in self._ready and self._next_step[rank] == self._start_step:
                num_first = min(START_BATCHES, self.max_batches // len(self._next_step))
                first = {(self._start_step + i, rank) for i in range(num_first)}
                self._state.wait_for(lambda: self._ready.keys() >= first or self._error or self._closed, START_S)
            if self._error:
                raise self._error
            if key not in self._ready:
                return None
            self._next_step[rank] += 1
            return self._ready.pop(key)

    def release(self, slot: int) -> None:
        """A rank has no use for a slot's images any more."""
        with self._state:
            self.arena.give_back(slot)
            self._state.notify_all()

    def close(self) -> None:
        """Stop the threads. May be called twice."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._state.notify_all()
        for thread in self._threads:
            thread.join()
        self._open.clear()
        self.arena.close()

    @property
    def num_decoded(self) -> int:
        """Frames decoded so far, those on the way to others included."""
        now = [part.dataset.num_decoded for part in self.plan.parts]
        return sum(now) - sum(self._decoded_before) + sum(decoder.num_decoded for decoder in self._decoders)

    def counters(self) -> dict[str, Any]:
        """What has been done so far: frames decoded, seconds by stage over all threads, batches that are ready."""
        seconds = {stage: round(s, 3) for stage, s in self.seconds.copy().items()}
        return {"frames_decoded": self.num_decoded, "ready_batches": len(self._ready), "seconds": seconds}

    def late(self) -> str:
        """What each thread is doing, the longest at it first."""
        now_s = time.monotonic()
        doing = sorted(self.activities.copy().items(), key=lambda item: item[1].since_s)
        told = [f"{name}: {a.stage} {a.detail} for {now_s - a.since_s:.0f} s" for name, a in doing if name != "plan"]
        return "; ".join(told) or "the decode threads are idle: planning"

    # ---- threads

    def _start(self, name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work, *arguments), name=name, daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except Closed:
            pass
        except BaseException as error:  # raised again in every rank, whatever it is
            with self._state:
                self._error = self._error or error
                self._state.notify_all()

    def _plan_ahead(self, start_step: int) -> None:
        with self._doing("plan", ""):
            for clip in self.plan.clips(start_step):
                with self._state:
                    self._wait_until(lambda: len(self._clips) < PLANNED_CLIPS)
                    self._clips.append(clip)
                    if len(self._clips) == 1:
                        self._state.notify_all()

    def _load_ahead(self, decoder: Decoder) -> None:
        with closing(decoder):
            while True:
                self._load_or_replace(self._admit(), decoder)

    def _admit(self) -> list[Clip]:
        # The next clips, once there is room for the batches that their frames go to. Batches open in order, so that
        # those that are taken next always have room.
        with self._state:
            self._wait_until(lambda: len(self._clips) > 0)
            with self._doing("wait for room", f"batch {self._clips[0].last_step}"):
                self._wait_until(lambda: bool(self._clips) and self._has_room(self._clips[0].last_step))
            clips: list[Clip] = []
            num_frames = 0
            while self._clips and self._has_room(self._clips[0].last_step) and num_frames < FRAMES_AT_ONCE:
                clips.append(self._clips.popleft())
                num_frames += len(clips[-1].frames)
                while self._opened <= clips[-1].last_step:
                    self._open_step(self._opened)
                    self._opened += 1
            self._state.notify_all()
            return clips

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._state.wait_for(lambda: self._closed or self._error or condition())
        self._check_open()

    def _has_room(self, step: int) -> bool:
        return self.arena.num_taken + (step + 1 - self._opened) * self.plan.node.ranks_per_node <= self.max_batches

    def _check_open(self) -> None:
        if self._closed or self._error:
            raise Closed

    def _open_step(self, step: int) -> None:
        for rank, sizes in enumerate(self.plan.layout(step).sizes):
            batch = OpenBatch(step, self.arena.take(), sizes)
            self._open[step, rank] = batch
            self._finish(rank, batch)

    def _finish(self, rank: int, batch: OpenBatch) -> None:
        if batch.is_complete:
            self._ready[batch.step, rank] = self._open.pop((batch.step, rank)).ready()
            self._state.notify_all()

    # ---- reading

    def _load(self, clips: Sequence[Clip], decoder: Decoder) -> None:
        samples = [self._numbers(clip) for clip in clips]
        batches = [[self._open[place.step, place.rank] for place in clip.places] for clip in clips]
        wanted = [each for clip, own in zip(clips, batches, strict=True) for each in self._pictures(clip, own)]
        self._fill(wanted, decoder)
        with self._state:
            for clip, own_samples, own_batches in zip(clips, samples, batches, strict=True):
                num_images = self.plan.parts[clip.part].num_images
                for place, sample, batch in zip(clip.places, own_samples, own_batches, strict=True):
                    batch.put(place, sample, num_images)
                    self._finish(place.rank, batch)

    def _pictures(self, clip: Clip, batches: Sequence[OpenBatch]) -> Iterator[Pictures]:
        for camera, key in enumerate(self.plan.parts[clip.part].preparation.cameras):
            numbers = [batch.image_number(place, camera) for batch, place in zip(batches, clip.places, strict=True)]
            images = tuple((batch.slot, number) for batch, number in zip(batches, numbers, strict=True))
            yield Pictures(clip.part, clip.episode, key, clip.frames, images)

    def _fill(self, wanted: Sequence[Pictures], decoder: Decoder) -> None:
        where = self._where(wanted)
        with self._doing("read kept frames", where):
            missing = [left for each in wanted if (left := self._not_kept(each))]
        if not missing:
            return
        with self._doing("decode", where):
            try:
                decoder.fill(missing)
            except Crashed as error:
                frames = sorted({frame for each in missing for frame in each.frames})
                raise InputError(f"{where}, frames {frames[0]} to {frames[-1]}: {error}") from error
        with self._doing("keep frames", where):
            for each in missing:
                self._keep(each)

    def _where(self, wanted: Sequence[Pictures]) -> str:
        # All of it: any of these files may be the one that a thread has been at for long.
        by_episode: defaultdict[tuple[int, int], dict[str, None]] = defaultdict(dict)
        for each in wanted:
            by_episode[each.part, each.episode][each.camera] = None
        told = []
        for (part, number), cameras in by_episode.items():
            episode = self._episode(part, number)
            files = ", ".join(f"{camera} in {episode.file_of(camera)}" for camera in cameras)
            told.append(f"episode {episode.index}, {files}, {self.plan.parts[part].dataset.root}")
        return "; ".join(told)

    def _not_kept(self, wanted: Pictures) -> Pictures | None:
        # Fills in what is kept; what is not is left.
        cache, episode = self.plan.parts[wanted.part].cache, self._episode(wanted.part, wanted.episode)
        if cache is None:
            return wanted
        name = self._name(wanted)
        missing = cache.read(wanted.camera, name, episode.length, wanted.frames, self._images(wanted))
        frames, images = tuple(wanted.frames[i] for i in missing), tuple(wanted.images[i] for i in missing)
        return wanted._replace(frames=frames, images=images) if missing else None

    def _keep(self, wanted: Pictures) -> None:
        cache, episode = self.plan.parts[wanted.part].cache, self._episode(wanted.part, wanted.episode)
        if cache is not None:
            name = self._name(wanted)
            for frame, image in zip(wanted.frames, self._images(wanted), strict=True):
                cache.write(wanted.camera, name, episode.length, frame, image)

    def _name(self, wanted: Pictures) -> str:
        # For the cache: another one when the file of the pictures is another.
        episode = self._episode(wanted.part, wanted.episode)
        return f"{episode.index:08d}-{self._stamp(wanted.part, episode.file_of(wanted.camera))}"

    def _images(self, wanted: Pictures) -> list[np.ndarray]:
        return [image_of(self.arena.whole(slot), number, self._image_shape) for slot, number in wanted.images]

    def _numbers(self, clip: Clip) -> list[Sample]:
        part = self.plan.parts[clip.part]
        episode, frames = self._episode(clip.part, clip.episode), np.array(clip.frames)
        with self._doing("read rows", f"episode {episode.index}, {episode.table_file}, {part.dataset.root}"):
            table = self._tables.get((clip.part, clip.episode))
        with self._doing("prepare", f"episode {episode.index}, {part.dataset.root}"):
            prepared = part.preparation.numbers(table, frames)
        ids = [SampleId(clip.part, episode.index, frame) for frame in clip.frames]
        embodiment = part.preparation.embodiment
        samples = [Sample(i, {}, *numbers, embodiment) for i, numbers in zip(ids, prepared, strict=True)]
        if not part.augment:
            return samples
        seed, names = self.plan.mixture.orders[clip.part].seed, part.camera_names
        return [replace(sample, augment_N7=draw(seed, clip.epoch, sample.id, names)) for sample in samples]

    def _read_table(self, key: tuple[int, int]) -> EpisodeTable:
        part, episode = key
        return self.plan.parts[part].dataset.read_table(self._episode(part, episode)).copy()

    def _load_or_replace(self, clips: Sequence[Clip], decoder: Decoder) -> None:
        # Where something cannot be read, each clip is by itself, then each sample.
        try:
            self._load(clips, decoder)
        except Unreachable:
            raise
        except InputError as error:
            parts = clips if len(clips) > 1 else _singles(clips[0])
            if len(parts) == 1:
                self._replace(parts[0], str(error), decoder)
                return
            for part in parts:
                self._load_or_replace([part], decoder)

    def _replace(self, clip: Clip, reason: str, decoder: Decoder) -> None:
        """Put another sample of the dataset in the place of one that cannot be read: which one follows from its id."""
        part, (frame,), (place,) = self.plan.parts[clip.part], clip.frames, clip.places
        bad = SampleId(clip.part, part.dataset.episodes[clip.episode].index, frame)
        allowed = self.plan.cost(clip.part, clip.episode, frame) if self.plan.budget_tokens else math.inf
        for attempt in range(MAX_REPLACEMENTS):
            episode, other = self._other_sample(clip, attempt)
            if attempt < FITTING_REPLACEMENTS and self.plan.cost(clip.part, episode, other) > allowed:
                continue
            used = SampleId(clip.part, part.dataset.episodes[episode].index, other)
            replacement, noted = Replacement(bad, used, reason), self._open[place.step, place.rank].replacements
            noted.append(replacement)  # before the batch may be complete
            try:
                return self._load([Clip(clip.part, episode, (other,), (place,), clip.epoch)], decoder)
            except Unreachable:
                raise
            except InputError:
                noted.remove(replacement)
        raise InputError(f"{part.dataset.root}: {reason}; and {MAX_REPLACEMENTS} others drawn in its place are bad too")

    def _other_sample(self, clip: Clip, attempt: int) -> tuple[int, int]:
        order = self.plan.mixture.orders[clip.part]
        draw = mix(order.seed, clip.episode, clip.frames[0], clip.epoch, attempt)
        position = clip.epoch * order.num_samples + int(draw[0] % np.uint64(order.num_samples))
        span, offset = order.sample(position)
        episode, first, _ = self.plan.parts[clip.part].spans_S3[span].tolist()
        return episode, first + offset

    @contextmanager
    def _doing(self, stage: str, detail: str) -> Iterator[None]:
        name, start_s = threading.current_thread().name, time.monotonic()
        self.activities[name] = Activity(stage, detail, start_s)
        try:
            yield
        finally:
            del self.activities[name]
            self.seconds[stage] += time.monotonic() - start_s


def _singles(clip: Clip) -> list[Clip]:
    return [
        replace(clip, frames=(frame,), places=(place,)) for frame, place in zip(clip.frames, clip.places, strict=True)
    ]
