"""Converts a dataset: parts side by side, joined, checked against the source, and only then put in their place."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.check import Fault, Unreachable
from vlarge.data.config import Source
from vlarge.data.convert.parts import Parts, Stopped
from vlarge.data.convert.plan import CameraPlan, claim, plan_cameras, plan_rate
from vlarge.data.convert.verify import Likeness, Verified, check_episodes, check_numbers, compare_frames
from vlarge.data.encode import Encoding, exact_rate
from vlarge.data.features import dimension_names
from vlarge.data.fetch import open_store
from vlarge.data.formats import lerobot
from vlarge.data.formats.describe import INDEX_FEATURES
from vlarge.data.formats.write import LeRobotWriter
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.manifest import Episode
from vlarge.data.manifest_file import in_columns

SOURCE_FILE = "meta/source.json"  # in the copy: which episode of the source each of its episodes is
DATASET, PARTS, VERIFIED = "dataset", "parts", "verified.jsonl"

type Tell = Callable[[str, int], None]


@dataclass(frozen=True)
class Conversion:
    """What has been converted and how well.

    Episode i of the copy is `dataset.episodes[i]`. likeness: by episode (the source's numbers) and camera.
    left_out: why other episodes are not there. dropped: features that the copy has not.
    """

    dataset: Dataset
    cameras: tuple[CameraPlan, ...]
    likeness: tuple[Likeness, ...]
    left_out: tuple[Fault, ...]
    dropped: tuple[str, ...]


class Converter:
    """Writes the usable episodes of a dataset to the new folder `out`, as LeRobot v3.0 with new numbers from 0 on.

    size: pictures become [size, size, 3], resized with padding as training does it; None keeps theirs.
    encoding: None copies the packets of video that needs no change, and encodes the rest by default.
    fps: frames per second, for a dataset that does not say; None is for one that does.
    num_workers: threads; memory is a few frames for each. num_steps: frames to make and to check.
    on_progress: as for `open_dataset`. State, action, tasks and pictures are kept, other columns are not.
    Raises InputError when there is nothing to convert, pictures cannot be what is asked for, or `out` lies in the
    source.
    """

    def __init__(
        self,
        source: Source,
        out: Path,
        *,
        size: int | None = None,
        encoding: Encoding | None = None,
        fps: float | None = None,
        num_workers: int = 1,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._out, self._size, self._num_workers = Path(out), size, num_workers
        whole = open_dataset(source, on_progress=on_progress)
        _check_outside(self._out, whole)
        # A dataset that others read has no row that is not finite.
        bad = {e.index for e in whole.episodes if e.bad_rows}
        self._source, self._dataset = source, whole.without(bad) if bad else whole
        self._left_out = _left_out(whole, self._dataset)
        if not self._dataset.episodes:
            faults = whole.faults
            why = f"; the first of {len(faults)} faults: {faults[0]}" if faults else ""
            raise InputError(f"{self._dataset.root}: no episode to convert{why}")
        self._fps = plan_rate(self._dataset, fps)
        self._cameras = plan_cameras(self._dataset, size, encoding)
        self.num_steps = 2 * self._dataset.num_frames * len(self._cameras)

    def run(self, tell: Tell = lambda line, steps: None) -> Conversion:
        """Convert, telling of each part that is made or checked.

        The copy is decoded and compared frame by frame before it appears at `out`. A run that was killed, stopped or
        out of disk goes on when it is repeated. Raises InputError when `out` exists, is being written, or another
        conversion was interrupted there; Mismatch for a copy that is not right: nothing is published then, and the
        part that was wrong is made again the next time.
        """
        dataset = self._dataset
        stage = claim(self._out, dataset, self._cameras, self._size, self._fps)
        try:
            parts = Parts(stage.path / PARTS, dataset, self._size, exact_rate(self._fps), threading.Event())
            work = _Work(stage.path, parts, self._source, self._cameras, self._num_workers, tell)
            work.make_parts()
            work.join_parts()
            likeness = work.verify()
            _write_origin(stage.path / DATASET, dataset, self._left_out)
            stage.publish(DATASET)
        finally:
            stage.leave()
        return Conversion(
            dataset=dataset,
            cameras=self._cameras,
            likeness=likeness,
            left_out=self._left_out,
            dropped=_dropped(dataset, self._source),
        )


@dataclass(frozen=True)
class _Work:
    folder: Path
    parts: Parts
    source: Source
    cameras: tuple[CameraPlan, ...]
    num_workers: int
    tell: Tell

    @property
    def dataset(self) -> Dataset:
        return self.parts.dataset

    def make_parts(self) -> None:
        """Every part that is not there yet."""
        jobs = []
        for episode in self.dataset.episodes:
            for camera in self.cameras:
                if self.parts.is_made(episode, camera):
                    self.tell(f"episode {episode.index}, {camera.key}: there already", episode.length)
                else:
                    jobs.append((episode, camera))
        self._side_by_side(self._make_part, jobs)

    def _make_part(self, episode: Episode, camera: CameraPlan) -> tuple[str, int]:
        self.parts.make(episode, camera)
        return f"episode {episode.index}, {camera.key}: {episode.length} frames", episode.length

    def join_parts(self) -> None:
        """The new dataset, in the folder to work in; nothing to do where an earlier run has joined it."""
        root = self.folder / DATASET
        if root.exists():
            return
        (self.folder / VERIFIED).unlink(missing_ok=True)
        features = self.dataset.features
        with LeRobotWriter(
            root,
            fps=float(self.parts.rate),
            cameras={camera.key: (camera.height, camera.width) for camera in self.cameras},
            state_names=dimension_names(features.get(self.source.state_key, {}), self.dataset.state_dim, "state_"),
            action_names=dimension_names(features.get(self.source.action_key, {}), self.dataset.action_dim, "action_"),
            robot_type=_robot_type(self.dataset),
        ) as writer:
            for episode in self.dataset.episodes:
                table = self.dataset.read_table(episode)
                clips = {camera.key: self.parts.clip(episode, camera) for camera in self.cameras}
                writer.add_episode(table.tasks, table.state_TA, table.action_TA, clips)
            writer.finish()

    def verify(self) -> tuple[Likeness, ...]:
        """Compare the copy with the source; raises Mismatch, and forgets what was wrong."""
        verified = Verified(self.folder / VERIFIED)
        try:
            copy = _open_unkept(self.folder / DATASET)
            check_episodes(self.dataset, copy)
            pairs = list(zip(self.dataset.episodes, copy.episodes, strict=True))
            for pair in pairs:
                check_numbers(self.dataset, copy, *pair)
            jobs = [(e, c, camera, copy, verified) for e, c in pairs for camera in self.cameras]
            self._side_by_side(self._verify_part, jobs)
        except Unreachable:
            raise  # not the copy's fault
        except InputError:
            shutil.rmtree(self.folder / DATASET)
            raise
        return tuple(verified.found[e.index, camera.key] for e, _ in pairs for camera in self.cameras)

    def _verify_part(
        self, episode: Episode, copied: Episode, camera: CameraPlan, copy: Dataset, verified: Verified
    ) -> tuple[str, int]:
        if (episode.index, camera.key) not in verified.found:
            frames = copy.iter_frames(copied, camera.key, range(copied.length))
            try:
                likeness = compare_frames(episode.index, camera, self.parts.source_frames(episode, camera), frames)
            except Unreachable:
                raise
            except InputError:
                self.parts.remove(episode, camera)
                raise
            verified.add(likeness)
        return f"episode {episode.index}, {camera.key}: checked", episode.length

    def _side_by_side(self, work: Callable[..., tuple[str, int]], jobs: Sequence[tuple[Any, ...]]) -> None:
        """Run `work(*job)` for each job in threads, and tell. The first error stops the others and is raised."""
        waiting: Iterable[tuple[Any, ...]] = iter(jobs)
        running: set[Future[tuple[str, int]]] = set()
        with ThreadPoolExecutor(self.num_workers) as pool:
            try:
                while True:
                    running |= {pool.submit(work, *job) for job in islice(waiting, 2 * self.num_workers - len(running))}
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    _raise_first(done)
                    for future in done:
                        self.tell(*future.result())
            except BaseException:
                self.parts.stop.set()
                raise


def _check_outside(out: Path, dataset: Dataset) -> None:
    root = dataset.store.local_path("")
    if root is not None and out.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{out} lies inside the dataset {dataset.root}, which would change; choose a folder elsewhere")


def _open_unkept(root: Path) -> Dataset:
    # It is about to be renamed: an index kept of it would never be used again.
    store, source = open_store(root), Source(path=str(root))
    return Dataset(store, in_columns(lerobot.index(store, source), store), source)


def _raise_first(done: Iterable[Future[Any]]) -> None:
    errors = [error for future in done if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, Stopped)):
        raise error


def _robot_type(dataset: Dataset) -> str:
    try:
        return str(json.loads(dataset.store.read("meta/info.json")).get("robot_type") or "unknown")
    except (OSError, ValueError, AttributeError):
        return "unknown"  # other formats do not say


def _left_out(whole: Dataset, kept: Dataset) -> tuple[Fault, ...]:
    numbers = {e.index for e in kept.episodes}
    return tuple(
        fault
        for fault in whole.faults
        if (fault.action == "quarantine" if fault.episode is None else fault.episode not in numbers)
    )


def _dropped(dataset: Dataset, source: Source) -> tuple[str, ...]:
    kept = {source.state_key, source.action_key, STATE, ACTION, *INDEX_FEATURES, *dataset.camera_keys}
    return tuple(key for key in dataset.features if key not in kept)


def _write_origin(root: Path, dataset: Dataset, left_out: Sequence[Fault]) -> None:
    origin = {
        "source": dataset.root,
        "format": dataset.format,
        "revision": dataset.revision,
        "episodes": [e.index for e in dataset.episodes],
        "left_out": [asdict(fault) for fault in left_out],
    }
    (root / SOURCE_FILE).write_text(json.dumps(origin, indent=2))
