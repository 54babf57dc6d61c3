"""A folder that appears whole or not at all: written beside its final place, then renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from vlarge.contracts import InputError

PUBLISHED = "published"  # a file that says: what lies here is the rest of what was put in its place


class StagedFolder:
    """Claims `root` for one writer. Write below `path`; `publish` renames it to `root`, `discard` removes it.

    The claim is a lock on the hidden sibling folder: it ends with the process, however that ends, and the next claim
    clears what a killed writer left, unless it is there to go on with that (`resume`). Raises InputError when `root`
    exists, another writer holds it, or it cannot be claimed: two writers at once would spoil each other's files.
    """

    def __init__(self, root: Path, *, resume: bool = False) -> None:
        self.root = Path(root)
        self.path = self.root.parent / f".{self.root.name}.partial"
        self._clear_published()
        self._refuse_existing()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot write to {self.root.parent}: {error.strerror}") from error
        self._claim()
        self.is_open = True
        # Its former holder may have published between our look and our lock.
        try:
            self._refuse_existing()
        except InputError:
            self._release()
            raise
        if not resume:
            self.clear()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise InputError(f"{self.root} is being written by another process; choose another folder") from None
        except OSError as error:  # a network file system without locks
            os.close(self._lock)
            with suppress(OSError):  # what an earlier writer left stays
                self.path.rmdir()
            raise InputError(
                f"{self.root} cannot be claimed for one writer: its file system has no locks ({error.strerror}); "
                "write to a local disk and move the folder"
            ) from error

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.root):  # a link that leads nowhere is in the way as well
            raise InputError(f"{self.root} exists; choose another folder or remove it first")

    def _clear_published(self) -> None:
        # What a writer left that was killed after it had put a part in its place: nobody goes on with it.
        if os.path.lexists(self.root) and (self.path / PUBLISHED).exists():
            with suppress(OSError):  # its writer is still at it
                lock = os.open(self.path, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._remove()
                finally:
                    os.close(lock)

    def clear(self) -> None:
        """Empty the folder."""
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == PUBLISHED):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _remove(self) -> None:
        self.clear()
        self.path.rmdir()

    def _release(self) -> None:
        os.close(self._lock)
        self.is_open = False

    def publish(self, part: str = "") -> None:
        """Put the folder, or only its subfolder `part`, in its place. Raises InputError when something lies there."""
        self._refuse_existing()
        if part:
            (self.path / PUBLISHED).touch()
        (self.path / part).rename(self.root)
        if part:
            self._remove()
        self._release()

    def leave(self) -> None:
        """Give up the claim and keep what is written, for another claim to go on with. Nothing after `publish`."""
        if self.is_open:
            self._release()

    def discard(self) -> None:
        """Remove everything written. Does nothing after `publish`."""
        if self.is_open:
            self._remove()
            self._release()
