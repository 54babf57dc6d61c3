"""dataset_info.json of a TFDS dataset: where it lies, which files each split has and how many records they promise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import FaultLog, Refused
from vlarge.data.formats.lerobot_metadata import read_json

INFO = "dataset_info.json"
FEATURES = "features.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
TRAIN = "train"
MAX_SHARD_RECORDS = 1_000_000


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


def find_folders(root: Path) -> list[str]:
    """Folders with a dataset's metadata, as "" or "name/version/": `root` itself, else those nearest below it."""
    for level in ("", "*/", "*/*/", "*/*/*/"):
        found = {path.parent.relative_to(root) for name in (INFO, FEATURES) for path in root.glob(level + name)}
        if found:
            return sorted("" if folder == Path() else f"{folder.as_posix()}/" for folder in found)
    return []


def find_folder(root: Path) -> str:
    """The one folder that `find_folders` finds. Raises InputError when there are several to choose from."""
    folders = find_folders(root)
    if len(folders) != 1:
        names = ", ".join(folder.rstrip("/") for folder in folders[:8])
        raise InputError(f"{root} holds {len(folders)} datasets or versions; give the path of one: {names}")
    return folders[0]


def read_splits(root: Path, folder: str, log: FaultLog) -> list[Split]:
    """The splits to read: `train`, or all where there is none. Raises Refused for metadata that cannot be used."""
    file = f"{folder}{INFO}"
    info = read_json(root, file)
    if not isinstance(info, dict) or not isinstance(info.get("splits"), list):
        raise Refused(root, "bad_info", file, "it has no list of splits")
    kind = info.get("fileFormat") or "tfrecord"
    if kind != "tfrecord":
        raise Refused(root, "unsupported_file_format", file, f"fileFormat is {kind!r:.40}; only 'tfrecord' is read")
    splits = [_split(root, folder, info, raw) for raw in info["splits"]]
    chosen = [split for split in splits if split.name == TRAIN] or splits
    for split in splits:
        if split not in chosen and split.shards:
            count = sum(shard.num_records for shard in split.shards)
            log.report("unused_split", file, f"split {split.name!r} ({count} episodes) is not read, only {TRAIN!r} is")
    return chosen


def _split(root: Path, folder: str, info: Mapping[str, Any], raw: Any) -> Split:
    file = f"{folder}{INFO}"
    name = raw.get("name") if isinstance(raw, dict) else None
    if not isinstance(name, str) or not name:
        raise Refused(root, "bad_info", file, "it has a split without a name")
    lengths = raw.get("shardLengths", [])
    if not isinstance(lengths, list) or not all(_is_count(n) and int(n) <= MAX_SHARD_RECORDS for n in lengths):
        raise Refused(root, "bad_info", file, f"shardLengths of split {name!r:.40} should be a list of counts")
    num_bytes = int(raw["numBytes"]) if _is_count(raw.get("numBytes")) else 0
    template = raw.get("filepathTemplate") or TEMPLATE
    fields = {"DATASET": str(info.get("name", "")), "SPLIT": name, "FILEFORMAT": "tfrecord"}
    files = (folder + _fill(root, file, str(template), fields, i, len(lengths)) for i in range(len(lengths)))
    shards = tuple(Shard(path, int(n)) for path, n in zip(files, lengths, strict=True))
    return Split(name, num_bytes, shards)


def _is_count(value: Any) -> bool:
    return (
        not isinstance(value, bool)
        and isinstance(value, int | str)
        and re.fullmatch(r"\d{1,18}", str(value)) is not None
    )


def _fill(root: Path, file: str, template: str, fields: Mapping[str, str], number: int, total: int) -> str:
    # Field by field, and never out of the dataset's folder.
    digits = max(5, len(str(total)))
    index, count = str(number).zfill(digits), str(total).zfill(digits)
    known = {**fields, "SHARD_INDEX": index, "NUM_SHARDS": count, "SHARD_X_OF_Y": f"{index}-of-{count}"}
    unknown = [name for name in re.findall(r"\{(\w*)", template) if name not in known]
    path = re.sub(r"\{(\w+)\}", lambda match: known.get(match[1], ""), template)
    parts = PurePosixPath(path).parts
    if unknown or not parts or path.startswith("/") or ".." in parts or any(c in path for c in "{}\\:\0"):
        raise Refused(root, "bad_template", file, f"filepathTemplate {template!r:.80} gives no path inside the dataset")
    return path
