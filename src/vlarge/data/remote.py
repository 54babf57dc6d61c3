"""Files in an object store: listed once, read by byte range through a local cache, asked for again after a failure."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vlarge.contracts import InputError
from vlarge.data.blocks import BlockCache
from vlarge.data.check import Unreachable
from vlarge.data.fetch import Entry, Patience, Store, describe, printable_address

STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
MAX_READERS = 16  # a request takes long and costs no processor


class Objects(Protocol):
    """What a kind of object store offers; errors are those of its library."""

    def list(self) -> Iterable[Entry]: ...

    def fetch(self, file: str, start: int, stop: int) -> bytes: ...


class RemoteStore(Store):
    """Names and sizes are those of one listing, taken when first asked for."""

    def __init__(self, address: str, patience: Patience, blocks: BlockCache) -> None:
        super().__init__(printable_address(address).rstrip("/"), patience, MAX_READERS)
        self._blocks = blocks
        self._objects = patience.try_again(str(self), lambda: _objects(address))  # some connect at once
        self._lock = threading.Lock()
        self._listing: dict[str, Entry] | None = None

    def exists(self, file: str) -> bool:
        return file in self._entries()

    def size(self, file: str) -> int:
        return self._entry(file).num_bytes

    def stamp_of(self, file: str) -> str:
        return self._entry(file).stamp

    def list_files(self, folder: str = "") -> list[Entry]:
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        return [entry for name, entry in self._entries().items() if name.startswith(prefix)]

    def read(self, file: str, start: int = 0, stop: int | None = None, *, ahead_bytes: int = 0) -> bytes:
        entry = self._entry(file)
        stop = entry.num_bytes if stop is None else min(stop, entry.num_bytes)
        if start >= stop:
            return b""
        key = hashlib.sha256(f"{self}\n{entry}".encode()).hexdigest()[:24]
        return self._blocks.read(key, entry.num_bytes, start, stop, partial(self._fetch, file), ahead_bytes)

    def local_path(self, file: str) -> Path | None:
        return None

    def _fetch(self, file: str, start: int, stop: int) -> bytes:
        def fetch() -> bytes:
            data = self._objects.fetch(file, start, stop)
            if len(data) != stop - start:
                raise OSError(f"{len(data)} bytes came where {stop - start} were asked for")
            return data

        return self.patience.try_again(self.path(file), fetch)

    def _entry(self, file: str) -> Entry:
        try:
            return self._entries()[file]
        except KeyError:
            raise Unreachable(f"{self.path(file)}: the file does not exist") from None

    def _entries(self) -> dict[str, Entry]:
        with self._lock:
            if self._listing is None:
                found = self.patience.try_again(str(self), lambda: sorted(self._objects.list()))
                hidden = [any(part.startswith(".") for part in entry.name.split("/")) for entry in found]
                self._listing = {e.name: e for e, is_hidden in zip(found, hidden, strict=True) if not is_hidden}
            return self._listing


def _objects(address: str) -> Objects:
    try:
        if address.startswith("s3://"):
            from vlarge.data.s3 import S3Objects

            return S3Objects(address)
        return FsspecObjects(address)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{printable_address(address)}: {describe(error)}; mend the address, or copy the files"
        ) from error


class FsspecObjects:
    """Any store that fsspec knows: `memory://`, `https://`, and with their packages `gs://`, `az://` and others."""

    def __init__(self, address: str) -> None:
        import fsspec

        self._fs, root = fsspec.core.url_to_fs(address)
        self._root = root.rstrip("/")

    def list(self) -> list[Entry]:
        self._fs.invalidate_cache()
        found: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
        start = len(self._root) + 1
        return [Entry(path[start:], int(info.get("size") or 0), _stamp(info)) for path, info in found.items()]

    def fetch(self, file: str, start: int, stop: int) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{file}", start=start, end=stop))


def _stamp(info: dict[str, Any]) -> str:
    return next((str(info[key]).strip('"') for key in STAMPS if info.get(key)), "")
