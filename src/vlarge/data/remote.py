"""Files in an object store, through fsspec: listed once, read by byte range, tried again when the network fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import Unreachable
from vlarge.data.fetch import Entry, Patience, Store, describe, printable_address

STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")


class RemoteStore(Store):
    """Names and sizes are those of one listing, taken when first asked for."""

    def __init__(self, address: str, patience: Patience) -> None:
        super().__init__(printable_address(address).rstrip("/"))
        self._patience = patience
        self._fs, root = _file_system(address)
        self._root = root.rstrip("/")
        self._lock = threading.Lock()
        self._listing: dict[str, Entry] | None = None

    def exists(self, file: str) -> bool:
        return file in self._entries()

    def size(self, file: str) -> int:
        return self._entry(file).num_bytes

    def list_files(self, folder: str = "") -> list[Entry]:
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        return [entry for name, entry in self._entries().items() if name.startswith(prefix)]

    def read(self, file: str, start: int = 0, stop: int | None = None) -> bytes:
        num_bytes = self._entry(file).num_bytes
        stop = num_bytes if stop is None else min(stop, num_bytes)
        return self._fetch(file, start, stop) if start < stop else b""

    def local_path(self, file: str) -> Path | None:
        return None

    def _fetch(self, file: str, start: int, stop: int) -> bytes:
        def fetch() -> bytes:
            data: bytes = self._fs.cat_file(f"{self._root}/{file}", start=start, end=stop)
            if len(data) != stop - start:
                raise OSError(f"{len(data)} bytes came where {stop - start} were asked for")
            return data

        return self._patience.try_again(self.path(file), fetch)

    def _entry(self, file: str) -> Entry:
        try:
            return self._entries()[file]
        except KeyError:
            raise Unreachable(f"{self.path(file)}: the file does not exist") from None

    def _entries(self) -> dict[str, Entry]:
        with self._lock:
            if self._listing is None:
                found = self._patience.try_again(str(self), self._find)
                self._listing = {entry.name: entry for entry in sorted(found)}
            return self._listing

    def _find(self) -> list[Entry]:
        self._fs.invalidate_cache()
        found: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
        start = len(self._root) + 1
        entries = [Entry(path[start:], int(info.get("size") or 0), _stamp(info)) for path, info in found.items()]
        return [e for e in entries if not any(part.startswith(".") for part in e.name.split("/"))]


def _stamp(info: dict[str, Any]) -> str:
    return next((str(info[key]).strip('"') for key in STAMPS if info.get(key)), "")


def _file_system(address: str) -> tuple[Any, str]:
    import fsspec

    try:
        return fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{printable_address(address)}: {describe(error)}; for S3 install vlarge[s3], or give a local folder"
        ) from error
