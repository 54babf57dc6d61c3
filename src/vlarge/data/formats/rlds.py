"""RLDS datasets in place (TFDS folders of tfrecord files), without TensorFlow: one record is one episode.

The split `train` is read; a dataset without it is read whole, split after split. All steps of a record are kept, the
last one too, whose action RLDS leaves undefined: it shows a real state, and openpi and Octo train on it as well.
`is_first`, `is_last` and `is_terminal` decide nothing. An episode's `first_row` is the byte where its record begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.check import BrokenFile, FaultLog
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_rows import NOT_FINITE
from vlarge.data.formats.rlds_features import Features, Steps, StepsParser
from vlarge.data.formats.rlds_info import FEATURES, INFO, Shard, find_folder, find_folders, read_splits
from vlarge.data.formats.rlds_reader import PictureDecoder
from vlarge.data.formats.rlds_records import Record, file_size, iter_records
from vlarge.data.manifest import Camera, Episode, Manifest

FORMAT = "rlds"
NUM_THREADS = 4  # each holds one record: one reads while another checks and parses
UNKNOWN_FPS = 10.0  # nothing that is trained depends on it


def matches(store: Store) -> bool:
    """Whether the folder, or one below it, looks like a TFDS dataset."""
    return bool(find_folders(store))


def index(store: Store, config: Source, on_progress: Callable[[int, int], None] | None = None) -> Manifest:
    """Everything about the dataset. Raises InputError when it cannot be opened; lesser faults are listed."""
    return _Index(store, config, on_progress).manifest()


@dataclass(frozen=True, eq=False)
class _Found:
    # What an episode's record holds, or its fault. pictures: (height, width) of the first one, or what is wrong.
    offset: int
    num_bytes: int
    fault: BrokenFile | None = None
    length: int = 0
    tasks: tuple[str, ...] = ()
    pictures: Mapping[str, tuple[int, int] | BrokenFile] = field(default_factory=dict)
    fps: float = 0.0
    ends_in_zeros: bool = False
    bad_rows: Mapping[str, list[int]] = field(default_factory=dict)  # by kind of fault


@dataclass(frozen=True, eq=False)
class _Scan:
    # The records of a shard; `end` says why no more of them could be found.
    records: list[_Found]
    end: BrokenFile | None


class _Index:
    def __init__(self, store: Store, config: Source, on_progress: Callable[[int, int], None] | None) -> None:
        self.on_progress = on_progress
        self.store = store
        self.config = config
        folder = find_folder(store)
        self.info_file, self.features_file = f"{folder}{INFO}", f"{folder}{FEATURES}"
        self.features = Features(store, self.features_file)
        self.features.check_request(config)
        self.log = FaultLog()
        for key in self.features.depth_maps:
            self.log.report(
                "depth_camera", self.features_file, f"{key} is a depth map; only pictures in colour are used"
            )
        self.splits = read_splits(store, folder, self.log)
        self.good: dict[int, tuple[str, _Found]] = {}  # by episode number, with its file

    def manifest(self) -> Manifest:
        self._scan()
        cameras = {key: self._camera(key) for key in self.features.cameras}
        self._check_texts()
        self._check_last_actions()
        fps = self._rate()
        episodes = tuple(self._episode(number) for number in self._usable())
        tasks = dict.fromkeys(task for e in episodes for task in e.tasks)
        described = {
            key: feature | ({"shape": [cameras[key].height, cameras[key].width, 3]} if key in cameras else {})
            for key, feature in self.features.described.items()
        }
        return Manifest(
            format=FORMAT,
            fps=fps,
            features=described,
            cameras=cameras,
            episodes=episodes,
            faults=self.log.faults(self.config.exclude_episodes),
            state_dim=self.features.numbers[self.config.state_key],
            action_dim=self.features.numbers[self.config.action_key],
            task_texts=dict(enumerate(tasks)),
            metadata_files=(self.info_file, self.features_file),
        )

    def _scan(self) -> None:
        shards = [shard for split in self.splits for shard in split.shards]
        parser = self.features.parser(self.config.state_key, self.config.action_key, list(self.features.cameras))
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            scans = []
            for scan in pool.map(lambda shard: _scan_shard(self.store, shard, parser), shards):
                scans.append(scan)
                if self.on_progress:
                    self.on_progress(len(scans), len(shards))
        counts = [max(shard.num_records, len(scan.records)) for shard, scan in zip(shards, scans, strict=True)]
        self._check_excluded(sum(counts))
        promised = sum(split.num_bytes for split in self.splits)
        is_short = sum(r.num_bytes for scan in scans for r in scan.records) < promised
        for first, shard, scan in zip(accumulate(counts, initial=0), shards, scans, strict=False):
            for number, found in enumerate(scan.records, first):
                self._place(number, shard.file, found)
            self._compare(first, shard, scan, is_short)

    def _check_excluded(self, num_episodes: int) -> None:
        unknown = set(self.config.exclude_episodes) - set(range(num_episodes))
        if unknown:
            held = f"0 to {num_episodes - 1}" if num_episodes else "none"
            name = f"data.exclude_episodes names episode {min(unknown)}"
            raise InputError(f"{self.store}: {name}; the dataset has {held}")

    def _place(self, number: int, file: str, found: _Found) -> None:
        if found.fault:
            self.log.leave_out(number, found.fault.kind, file, found.fault.detail)
        elif found.length == 0:
            self.log.report("zero_length_episode", file, "its record has no steps; it is skipped", number)
        else:
            self.good[number] = file, found
            for kind, rows in found.bad_rows.items():
                detail = f"{len(rows)} frames are NaN or infinite, first frame {rows[0]}; they are not used"
                self.log.leave_out_frames(number, (rows[0], rows[-1]), kind, file, detail)

    def _compare(self, first: int, shard: Shard, scan: _Scan, is_short: bool) -> None:
        # A shard with fewer records than promised has lost them, unless all promised bytes are there.
        found, promised = len(scan.records), shard.num_records
        lost = range(first + found, first + promised)
        if scan.end and found >= promised:
            self.log.report("trailing_bytes", shard.file, f"after its {found} records: {scan.end.detail}")
        elif scan.end or (lost and is_short):
            end = scan.end or BrokenFile("truncated_record", f"the file ends after {found} of {promised} records")
            for number in lost:
                self.log.leave_out(number, end.kind, shard.file, end.detail)
        elif found != promised:
            self.log.report("wrong_totals", self.info_file, f"{shard.file} has {found} records, not {promised}")

    def _usable(self) -> list[int]:
        return [n for n in self.good if n not in self.config.exclude_episodes and not self.log.is_out(n)]

    def _camera(self, key: str) -> Camera:
        seen = {n: (file, found.pictures[key]) for n, (file, found) in self.good.items()}
        sizes = [size for _, size in seen.values() if isinstance(size, tuple)]
        broken = {n: (file, fault) for n, (file, fault) in seen.items() if isinstance(fault, BrokenFile)}
        if seen and all(fault.kind == "missing_column" for _, fault in broken.values()) and not sizes:
            if key in self.config.cameras:
                raise InputError(f"{self.store}: camera {key!r} (data.cameras) is declared but no record has it")
            self.log.report("phantom_camera", self.features_file, f"{key} is declared but no record has it")
        elif not self.config.cameras or key in self.config.cameras:
            for number, (file, fault) in broken.items():
                self.log.leave_out(number, fault.kind, file, fault.detail)
        declared = [max(n, 0) for n in self.features.described[key]["shape"][:2]]
        height, width = sizes[0] if sizes else declared
        odd = sorted(set(sizes) - {(declared[0] or height, declared[1] or width)})
        if odd:
            said = f"{declared[0] or height}x{declared[1] or width}"
            detail = f"{key} is {', '.join(f'{h}x{w}' for h, w in odd)} where {said} is said or comes first"
            self.log.report("wrong_resolution", self.features_file, detail)
        return Camera(key, height, width, "image", present=bool(sizes))

    def _check_texts(self) -> None:
        if not self.features.has_instruction:
            self.log.report("no_instruction", self.features_file, "no feature is an instruction; texts are empty")
            return
        without = [n for n, (_, found) in self.good.items() if "" in found.tasks]
        if without:
            detail = f"steps of {len(without)} episodes (first: {without[0]}) have an empty text; they are kept"
            self.log.report("no_instruction", self.good[without[0]][0], detail)

    def _check_last_actions(self) -> None:
        padded = [n for n, (_, found) in self.good.items() if found.ends_in_zeros]
        if padded:
            detail = f"the last action of {len(padded)} episodes (first: {padded[0]}) is all zeros; it is kept"
            self.log.report("zero_last_action", self.good[padded[0]][0], detail)

    def _rate(self) -> float:
        rates = {found.fps for _, found in self.good.values()}
        if len(rates) == 1 and 0 < (rate := rates.pop()) < 1e6:
            return rate
        why = "its episodes have different rates" if len(rates) > 1 else "it does not say how many steps a second has"
        self.log.report("unknown_fps", self.features_file, f"{why}; time is shown at {UNKNOWN_FPS:g} Hz")
        return UNKNOWN_FPS

    def _episode(self, number: int) -> Episode:
        file, found = self.good[number]
        bad_rows = tuple(sorted(set().union(*found.bad_rows.values())))
        return Episode(number, found.length, found.tasks, file, found.offset, {}, bad_rows)


def _scan_shard(store: Store, shard: Shard, parser: StepsParser) -> _Scan:
    records: list[_Found] = []
    size = file_size(store, shard.file)
    if size == 0 and shard.num_records:
        return _Scan(records, BrokenFile("empty_shard", "the file has 0 bytes"))
    if size is None:
        return _Scan(records, BrokenFile("missing_shard", "the file does not exist"))
    decoder = PictureDecoder()
    for record in iter_records(store, shard.file):
        if record.is_end:
            return _Scan(records, record.fault)
        records.append(_look_at(record, parser, decoder))
    return _Scan(records, None)


def _look_at(record: Record, parser: StepsParser, decoder: PictureDecoder) -> _Found:
    if record.fault:
        return _Found(record.offset, record.num_bytes, record.fault)
    try:
        steps = parser.parse(record.payload)
        bad_rows = _bad_rows(steps)
    except BrokenFile as fault:
        return _Found(record.offset, record.num_bytes, fault)
    return _Found(
        record.offset,
        record.num_bytes,
        length=len(steps.state_TA),
        tasks=tuple(dict.fromkeys(steps.tasks)),
        pictures={key: _probe(key, steps.pictures.get(key), decoder) for key in parser.camera_keys},
        fps=steps.fps,
        ends_in_zeros=len(steps.action_TA) > 0 and not steps.action_TA[-1].any(),
        bad_rows=bad_rows,
    )


def _bad_rows(steps: Steps) -> dict[str, list[int]]:
    # Rows with NaN or infinity, by kind. Raises BrokenFile when they are all there is.
    bad = {}
    for kind, values in zip(NOT_FINITE, (steps.state_TA, steps.action_TA), strict=True):
        rows = np.flatnonzero(~np.isfinite(values).all(1)).tolist()
        if rows:
            bad[kind] = rows
        if rows and len(set().union(*bad.values())) == len(values):
            raise BrokenFile(kind, f"{len(rows)} frames are NaN or infinite; no frame is left to use")
    return bad


def _probe(key: str, pictures: Sequence[bytes] | None, decoder: PictureDecoder) -> tuple[int, int] | BrokenFile:
    # Height and width of the first picture; all others are decoded when they are needed.
    if pictures is None:
        return BrokenFile("missing_column", f"the record has no {key!r}")
    if not pictures:
        return 0, 0
    try:
        height, width, _ = decoder.decode(pictures[0], f"{key}, frame 0").shape
    except InputError as error:
        return BrokenFile("bad_picture", str(error))
    return height, width
