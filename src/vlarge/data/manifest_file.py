"""A manifest on disk: Arrow files that every process maps into its memory, and one JSON file that vouches for them."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlarge.data.fetch import Store
from vlarge.data.manifest import Camera, Manifest
from vlarge.data.manifest_rows import (
    FaultRows,
    Names,
    Numbering,
    VideoRows,
    column,
    episode_rows,
    episode_table,
    fault_table,
    video_tables,
)

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2  # of the files, and of what indexing finds: raise it with either
HEAD = "manifest.json"
# Too large to be read whole at every start: VideoRows checks each file's part of them.
UNREAD = ("packets", "frames")


class Damaged(Exception):
    """A manifest on disk that is not what was written."""


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write all of it into an existing folder; `manifest.json` comes last. Raises OSError."""
    import pyarrow as pa

    checks = {}
    for name, table in _tables(manifest).items():
        path = folder / f"{name}.arrow"
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        _settle(path)
        checks[name] = (path.stat().st_size, 0 if name in UNREAD else zlib.crc32(path.read_bytes()))
    (folder / HEAD).write_text(json.dumps(_head(manifest) | {"version": VERSION, "checks": checks}))
    _settle(folder / HEAD)


def _settle(path: Path) -> None:
    # Onto the disk, before the rename that makes it valid.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_manifest(folder: Path, store: Store) -> Manifest:
    """Map what `write_manifest` wrote; no object is made per episode, fault or video. Raises Damaged."""
    import pyarrow as pa

    try:
        head = json.loads((folder / HEAD).read_text())
        if head["version"] != VERSION:
            raise Damaged(f"{folder}: version {head['version']}, not {VERSION}")
        tables = {name: _map(folder / f"{name}.arrow", *check) for name, check in head["checks"].items()}
        return _manifest(head, tables, store)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise Damaged(f"{folder}: {error}") from error


def in_columns(manifest: Manifest, store: Store) -> Manifest:
    """The same manifest as if it had been written and read."""
    return _manifest(_head(manifest), _tables(manifest), store)


def _map(path: Path, num_bytes: int, checksum: int) -> pa.Table:
    import pyarrow as pa

    source = pa.memory_map(str(path))
    if source.size() != num_bytes:
        raise Damaged(f"{path}: it has {source.size()} bytes, not {num_bytes}")
    if path.stem not in UNREAD and zlib.crc32(source.read_buffer()) != checksum:
        raise Damaged(f"{path}: its bytes have changed")
    source.seek(0)
    return pa.ipc.open_file(source).read_all()


def _head(manifest: Manifest) -> dict[str, Any]:
    names = ("format", "fps", "features", "state_dim", "action_dim", "metadata_files", "revision")
    cameras = [asdict(camera) for camera in manifest.cameras.values()]
    return {name: getattr(manifest, name) for name in names} | {"cameras": cameras}


def _tables(manifest: Manifest) -> dict[str, pa.Table]:
    import pyarrow as pa

    files, texts = Numbering(), Numbering()
    numbers, tasks = list(manifest.task_texts), list(manifest.task_texts.values())
    tables = {
        "episodes": episode_table(manifest.episodes, files, texts),
        "tasks": pa.table({"task_index": pa.array(numbers, pa.int64()), "text": pa.array(tasks, pa.large_string())}),
        "faults": fault_table(manifest.faults),
        **video_tables(manifest.video_files),
    }
    return tables | {"files": files.table(), "texts": texts.table()}


def _manifest(head: Mapping[str, Any], tables: Mapping[str, pa.Table], store: Store) -> Manifest:
    cameras = [Camera(**camera) for camera in head["cameras"]]
    tasks = zip(column(tables["tasks"], "task_index").tolist(), Names(tables["tasks"], "text"), strict=True)
    return Manifest(
        format=head["format"],
        fps=head["fps"],
        features=head["features"],
        cameras={camera.key: camera for camera in cameras},
        episodes=episode_rows(tables["episodes"], Names(tables["files"], "text"), Names(tables["texts"], "text")),
        faults=FaultRows(tables["faults"]),
        state_dim=head["state_dim"],
        action_dim=head["action_dim"],
        task_texts=dict(tasks),
        metadata_files=tuple(head["metadata_files"]),
        video_files=VideoRows(tables, store),
        revision=head["revision"],
    )
