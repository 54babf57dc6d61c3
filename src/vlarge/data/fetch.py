"""A dataset's files, wherever they lie: names, sizes and byte ranges, from a local folder or an object store."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from vlarge.contracts import InputError
from vlarge.data.cache import Sized
from vlarge.data.check import Unreachable

ADDRESS = re.compile(r"[A-Za-z][\w+.-]*(?:::|://)")
MAX_LOCAL_READERS = 8  # of a disk; what is read is checked by one thread
MAX_WAITING_BYTES = 1 << 30  # read and not yet looked at
MAX_AHEAD_BYTES = 4 << 20
MAX_GAP_BYTES = 256 << 10  # between two reads in a row: columns that are not wanted
# Asking again cannot help: these say something about the file, not about the way to it.
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError, ImportError)


class Entry(NamedTuple):
    """A file of a store. name: relative to the store, with "/". stamp: changes when the content does."""

    name: str
    num_bytes: int
    stamp: str


@dataclass(frozen=True)
class Patience:
    """How long a failing read is tried again: pauses double from `first_pause_s` on, until `deadline_s` has passed."""

    deadline_s: float = 120.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0

    def try_again[T](self, what: str, read: Callable[[], T]) -> T:
        """What `read` returns. Raises Unreachable naming `what` when it fails for good, or until the deadline."""
        start_s, pause_s = time.monotonic(), self.first_pause_s
        while True:
            try:
                return read()
            except InputError:
                raise
            except (MemoryError, TypeError, LookupError, AttributeError, AssertionError):
                raise  # of this machine or of this program: no store mends it
            except FINAL as error:
                raise Unreachable(f"{what}: cannot be read ({describe(error)})") from error
            except Exception as error:  # each backend has its own classes for what the network does
                waited_s = time.monotonic() - start_s
                if waited_s + pause_s > self.deadline_s:
                    raise Unreachable(
                        f"{what}: still cannot be read after {waited_s:.0f} s ({describe(error)}); "
                        "see to the store and start again, nothing is lost"
                    ) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self.longest_pause_s)


def describe(error: BaseException) -> str:
    """One line about an error, without what may be secret in an address."""
    lines = str(error).strip().splitlines()
    return printable_address(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def printable_address(text: str) -> str:
    """Without the user, password and query of addresses: those may be credentials."""
    return re.sub(r"\?[^\s'\"]*", "", re.sub(r"(?<=://)[^/\s@]*@", "", text))


class Store(ABC):
    """Threads may share one. Files are named relative to it, with "/". `str(store)` is for messages."""

    def __init__(self, name: str, patience: Patience, num_readers: int) -> None:
        self._name = name
        self.patience = patience
        self.num_readers = num_readers  # how many files are read at a time when all have to be looked at

    def __str__(self) -> str:
        return self._name

    def path(self, file: str) -> str:
        """Where a file lies, for messages."""
        return f"{self._name.rstrip('/')}/{file}"

    @abstractmethod
    def exists(self, file: str) -> bool: ...

    def require(self, file: str) -> None:
        """Raise Unreachable for a file that was there when the dataset was indexed, and is not any more."""
        if not self.exists(file):
            raise Unreachable(f"{self.path(file)}: the file has gone since it was indexed; see to it and start again")

    @abstractmethod
    def size(self, file: str) -> int:
        """Bytes of a file that exists."""

    @abstractmethod
    def list_files(self, folder: str = "") -> list[Entry]:
        """All files at any depth below a folder, by name; without hidden ones. Raises Unreachable.

        In the list of all files, a folder at the top that may not be read (a disk's lost+found) is passed over.
        """

    def stamp(self) -> str:
        """Changes when a file is added, taken away or written to."""
        entries = "\n".join("\0".join(map(str, entry)) for entry in self.list_files())
        return hashlib.sha256(entries.encode("utf-8", "surrogateescape")).hexdigest()

    @abstractmethod
    def stamp_of(self, file: str) -> str:
        """Changes when the file is written to. Raises Unreachable when it is not there."""

    @abstractmethod
    def read(self, file: str, start: int = 0, stop: int | None = None, *, ahead_bytes: int = 0) -> bytes:
        """The bytes [start, stop), fewer where the file ends. Raises Unreachable after trying for a while.

        ahead_bytes: how many beyond `stop` are likely to be asked for next; a remote store fetches them together.
        """

    @abstractmethod
    def local_path(self, file: str) -> Path | None:
        """For libraries that want a path; None where there is none."""

    def open(self, file: str) -> str | BinaryIO:
        """What pyarrow and PyAV take: a path, or a seekable file object that reads through this store."""
        path = self.local_path(file)
        return str(path) if path else cast(BinaryIO, io.BufferedReader(_StoreFile(self, file), 1 << 16))


class LocalStore(Store):
    """A folder. Opens a file for each read (about 10 µs beside the read), so descriptors stay few."""

    def __init__(self, root: Path, patience: Patience = Patience()) -> None:
        super().__init__(str(root), patience, min(len(os.sched_getaffinity(0)), MAX_LOCAL_READERS))
        self._root = root

    def exists(self, file: str) -> bool:
        path = self.local_path(file)
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except PermissionError as error:  # whether it is there, nobody knows
            raise Unreachable(f"{path}: cannot be read ({describe(error)})") from error
        except (OSError, ValueError):
            return False

    def size(self, file: str) -> int:
        path = self.local_path(file)
        return self.patience.try_again(str(path), lambda: os.stat(path).st_size)

    def stamp_of(self, file: str) -> str:
        self.require(file)
        return str(os.stat(f"{self._root}/{file}").st_mtime_ns)

    def list_files(self, folder: str = "") -> list[Entry]:
        return sorted(_walk(str(self._root / folder), f"{folder.rstrip('/')}/" if folder else "", set()))

    def read(self, file: str, start: int = 0, stop: int | None = None, *, ahead_bytes: int = 0) -> bytes:
        path = f"{self._root}/{file}"

        def read() -> bytes:
            with open(path, "rb", buffering=0) as handle:
                wanted = (os.fstat(handle.fileno()).st_size if stop is None else stop) - start
                data = os.pread(handle.fileno(), wanted, start)
                return data if len(data) in (0, wanted) else data + _rest(handle.fileno(), wanted, start, data)

        return self.patience.try_again(path, read)

    def local_path(self, file: str) -> Path:
        return self._root / file


def _rest(descriptor: int, wanted: int, start: int, data: bytes) -> bytes:
    # One pread returns at most 2 GiB.
    parts = []
    done = len(data)
    while done < wanted and (part := os.pread(descriptor, wanted - done, start + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _walk(folder: str, prefix: str, above: set[tuple[int, int]], is_optional: bool = False) -> Iterator[Entry]:
    # Links to folders are followed, unless one leads back to a folder it lies in. What vanishes meanwhile is not there.
    try:
        about = os.stat(folder)
        with os.scandir(folder) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if is_optional and isinstance(error, PermissionError):
            return
        raise Unreachable(f"{folder}: the folder cannot be read ({describe(error)})") from error
    here = (about.st_dev, about.st_ino)
    if here in above:
        return
    for entry in entries:
        if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
            yield from _walk(entry.path, f"{prefix}{entry.name}/", above | {here}, is_optional=not prefix)
        elif os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file():
            with suppress(FileNotFoundError):
                about = entry.stat()
                yield Entry(prefix + entry.name, about.st_size, str(about.st_mtime_ns))


class _StoreFile(io.RawIOBase):
    # A file object for libraries that take one. As much is fetched ahead as has been read in a row: whoever reads all
    # of a file waits for few requests, and whoever reads a part fetches less than twice of it.

    def __init__(self, store: Store, file: str) -> None:
        self._store, self._file = store, file
        self._num_bytes = store.size(file)
        self._position = 0
        self._row = 0, 0  # where what was read in a row begins and ends

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._num_bytes)[whence]
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        start, stop = self._position, min(self._position + len(buffer), self._num_bytes)
        begin, end = self._row
        begin = min(begin, start) if abs(start - end) <= MAX_GAP_BYTES else start
        data = self._store.read(self._file, start, stop, ahead_bytes=min(start - begin, MAX_AHEAD_BYTES))
        self._row = begin, stop
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def read_ahead[T: Sized](
    read: Callable[[str], T], files: Iterable[str], num_readers: int
) -> Iterator[tuple[str, Callable[[], T]]]:
    """(file, function that returns what was read or raises) in the files' order, read by threads a little ahead.

    The first is read alone. As many wait after it as MAX_WAITING_BYTES holds of the largest so far, one at least.
    """
    with ThreadPoolExecutor(num_readers, "read") as pool:
        waiting: deque[tuple[str, Future[T]]] = deque()
        largest_bytes, most = 1, 1
        try:
            for file in files:
                while len(waiting) >= most:
                    first, future = waiting.popleft()
                    yield first, future.result
                    if not future.exception():
                        largest_bytes = max(largest_bytes, future.result().num_bytes)
                    most = max(1, min(2 * num_readers, MAX_WAITING_BYTES // largest_bytes))
                waiting.append((file, pool.submit(read, file)))
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result
        finally:
            for _, future in waiting:
                future.cancel()


def is_address(path: str) -> bool:
    """Whether this names an object store (`s3://bucket/folder`) rather than a local folder."""
    return bool(ADDRESS.match(path)) and not path.startswith(("file://", "hf://"))


def open_store(
    address: str | Path,
    patience: Patience = Patience(),
    blocks_dir: Path = Path("blocks"),
    blocks_bytes: int = 0,
) -> Store:
    """The files below a local folder, or below an object store's address: `s3://...`, or what else fsspec knows.

    blocks_dir, blocks_bytes: where parts of remote files are kept, and how much at most; 0 keeps none.
    """
    text = str(address)
    if is_address(text):
        from vlarge.data.blocks import BlockCache
        from vlarge.data.remote import RemoteStore

        return RemoteStore(text, patience, BlockCache(blocks_dir, blocks_bytes))
    return LocalStore(Path(text.removeprefix("file://")), patience)
