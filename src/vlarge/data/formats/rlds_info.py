"""dataset_info.json of a TFDS dataset: where it lies, which files each split has and how many records they promise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import FaultLog, Refused
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_metadata import read_json
from vlarge.data.formats.path_template import fill

INFO = "dataset_info.json"
FEATURES = "features.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
TRAIN = "train"
MAX_SHARD_RECORDS = 1_000_000
MAX_LEVELS = 4  # of folders in which a dataset is looked for


@dataclass(frozen=True)
class Shard:
    """A tfrecord file, relative to the dataset, and the number of records that it should have."""

    file: str
    num_records: int


@dataclass(frozen=True)
class Split:
    """num_bytes: of all payloads together; 0 where it is not said."""

    name: str
    num_bytes: int
    shards: tuple[Shard, ...]


def find_folders(store: Store) -> list[str]:
    """Folders with a dataset's metadata, as "" or "name/version/": the store itself, else those nearest below it."""
    for level in range(MAX_LEVELS):
        found = sorted({folder for folder, name in _files(store, level) if name in (INFO, FEATURES)})
        if found:
            return found
    return []


def _files(store: Store, level: int) -> Iterator[tuple[str, str]]:
    # (folder with "/" behind it, name) of the files so deep below the store. A local folder may be anybody's: it is
    # not walked deeper than that.
    root = store.local_path("")
    paths = root.glob("*/" * level + "*.json") if root else (PurePosixPath(e.name) for e in store.list_files())
    for path in paths:
        inside = path.relative_to(root) if root else path
        if len(inside.parts) == level + 1:
            yield "/".join([*inside.parts[:-1], ""]), inside.name


def find_folder(store: Store) -> str:
    """The one folder that `find_folders` finds. Raises InputError when there are several to choose from."""
    folders = find_folders(store)
    if len(folders) != 1:
        names = ", ".join(folder.rstrip("/") for folder in folders[:8])
        raise InputError(f"{store} holds {len(folders)} datasets or versions; give the path of one: {names}")
    return folders[0]


def read_splits(store: Store, folder: str, log: FaultLog) -> list[Split]:
    """The splits to read: `train`, or all where there is none. Raises Refused for metadata that cannot be used."""
    file = f"{folder}{INFO}"
    info = read_json(store, file)
    if not isinstance(info, dict) or not isinstance(info.get("splits"), list):
        raise Refused(store, "bad_info", file, "it has no list of splits")
    kind = info.get("fileFormat") or "tfrecord"
    if kind != "tfrecord":
        raise Refused(store, "unsupported_file_format", file, f"fileFormat is {kind!r:.40}; only 'tfrecord' is read")
    splits = [_split(store, folder, info, raw) for raw in info["splits"]]
    chosen = [split for split in splits if split.name == TRAIN] or splits
    for split in splits:
        if split not in chosen and split.shards:
            count = sum(shard.num_records for shard in split.shards)
            log.report("unused_split", file, f"split {split.name!r} ({count} episodes) is not read, only {TRAIN!r} is")
    return chosen


def _split(store: Store, folder: str, info: Mapping[str, Any], raw: Any) -> Split:
    file = f"{folder}{INFO}"
    name = raw.get("name") if isinstance(raw, dict) else None
    if not isinstance(name, str) or not name:
        raise Refused(store, "bad_info", file, "it has a split without a name")
    lengths = raw.get("shardLengths", [])
    if not isinstance(lengths, list) or not all(_is_count(n) and int(n) <= MAX_SHARD_RECORDS for n in lengths):
        raise Refused(store, "bad_info", file, f"shardLengths of split {name!r:.40} should be a list of counts")
    num_bytes = int(raw["numBytes"]) if _is_count(raw.get("numBytes")) else 0
    template = str(raw.get("filepathTemplate") or TEMPLATE)
    fields = (_fields(info, name, i, len(lengths)) for i in range(len(lengths)))
    files = (folder + fill(store, file, "filepathTemplate", template, known) for known in fields)
    shards = tuple(Shard(path, int(n)) for path, n in zip(files, lengths, strict=True))
    return Split(name, num_bytes, shards)


def _is_count(value: Any) -> bool:
    return (
        not isinstance(value, bool)
        and isinstance(value, int | str)
        and re.fullmatch(r"\d{1,18}", str(value)) is not None
    )


def _fields(info: Mapping[str, Any], split: str, number: int, total: int) -> dict[str, int | str]:
    digits = max(5, len(str(total)))
    index, count = str(number).zfill(digits), str(total).zfill(digits)
    return {
        "DATASET": str(info.get("name", "")),
        "SPLIT": split,
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": index,
        "NUM_SHARDS": count,
        "SHARD_X_OF_Y": f"{index}-of-{count}",
    }
