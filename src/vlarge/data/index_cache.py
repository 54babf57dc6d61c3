"""Indexes that are kept: built once for a dataset's files as they are, mapped by every process after that."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import vlarge
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.manifest import Manifest
from vlarge.data.manifest_file import VERSION, Damaged, in_columns, read_manifest, write_manifest

# What of a source decides its manifest, beside the files.
SETTINGS = ("cameras", "state_key", "action_key", "exclude_episodes")
MAX_KEPT = 8  # of one dataset, each with other settings: what was used longest ago goes
log = logging.getLogger(__name__)


def obtain(store: Store, source: Source, index_dir: Path, build: Callable[[], Manifest]) -> Manifest:
    """The kept manifest of these files and settings, or what `build` makes, which is kept then.

    Processes that come at the same time wait for one of them to build it. What a killed one left is cleared by the
    next. Where `index_dir` cannot be written, everything works and nothing is kept.
    """
    slot, files = _slot(store, source), _files(store)
    folder = index_dir / f"{slot}-{files}"
    with suppress(Damaged):
        return _read(folder, store)
    with _claim(index_dir, slot) as is_ours:
        with suppress(Damaged):  # another process may have built it while this one waited
            return read_manifest(folder, store)
        manifest = build()
        if is_ours and _files(store) == files:
            try:
                _keep(manifest, folder, slot)
                _evict(index_dir, slot)
                return read_manifest(folder, store)
            except (OSError, Damaged) as error:
                log.warning("the index of %s is not kept: %s", store, error)
        return in_columns(manifest, store)


def _read(folder: Path, store: Store) -> Manifest:
    manifest = read_manifest(folder, store)
    with suppress(OSError):  # where others may only read
        os.utime(folder)
    return manifest


def _slot(store: Store, source: Source) -> str:
    # One kept index for each of these: a newer one replaces it. The dataset is the part before the dash.
    settings = {name: value for name, value in asdict(source).items() if name in SETTINGS}
    quarantine = Path(source.quarantine).expanduser()
    listed = quarantine.read_text(errors="replace") if source.quarantine and quarantine.is_file() else ""
    return f"{_hash(str(store))}-{_hash(json.dumps([settings, bool(source.quarantine), listed]))}"


def _files(store: Store) -> str:
    return _hash(f"{vlarge.__version__} {VERSION}\n{store.stamp()}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


@contextmanager
def _claim(index_dir: Path, slot: str) -> Iterator[bool]:
    # Holds the slot's lock, which ends with the process however that ends; False where there can be none.
    try:
        index_dir.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(index_dir, slot)
    except OSError as error:
        log.warning("indexes are not kept, %s cannot be written: %s", index_dir, error.strerror)
        yield False
        return
    try:
        yield _lock(lock, index_dir) and _is_in_place(lock, index_dir, slot)
    finally:
        os.close(lock)


def _open_lock(index_dir: Path, slot: str) -> int:
    return os.open(_lock_file(index_dir, slot), os.O_RDWR | os.O_CREAT, 0o666)


def _lock_file(index_dir: Path, slot: str) -> Path:
    return index_dir / f".{slot}.lock"


def _is_in_place(lock: int, index_dir: Path, slot: str) -> bool:
    # A lock that was removed while this process waited for it holds nobody off.
    try:
        return os.path.samestat(os.fstat(lock), _lock_file(index_dir, slot).stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, index_dir: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:  # a network file system without locks
        log.warning("indexes are not kept, %s has no locks: %s", index_dir, error.strerror)
        return False
    return True


def _keep(manifest: Manifest, folder: Path, slot: str) -> None:
    stage = folder.parent / f".{slot}.partial"
    for old in (stage, *folder.parent.glob(f"{slot}-*")):
        shutil.rmtree(old, ignore_errors=True)  # processes that map an older index keep what they map
    stage.mkdir()
    write_manifest(manifest, stage)
    stage.rename(folder)


def _evict(index_dir: Path, slot: str) -> None:
    # Other settings of the same dataset, and their locks. A slot that another process is building stays.
    for old in sorted(index_dir.glob(f"{slot.partition('-')[0]}-*"), key=_used_s)[:-MAX_KEPT]:
        old_slot = old.name.rpartition("-")[0]
        with suppress(OSError):
            lock = _open_lock(index_dir, old_slot)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)  # processes that map it keep what they map
                _lock_file(index_dir, old_slot).unlink()
            finally:
                os.close(lock)


def _used_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # another process was first to remove it
        return 0
