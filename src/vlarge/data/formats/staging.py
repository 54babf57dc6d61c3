"""A folder that appears whole or not at all: written beside its final place, then renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from vlarge.contracts import InputError


class StagedFolder:
    """Claims `root` for one writer. Write below `path`; `publish` renames it to `root`, `discard` removes it.

    The claim is a lock on the hidden sibling folder: it ends with the process, however that ends, and the next claim
    clears what a killed writer left, unless it is there to go on with that (`resume`). Raises InputError when `root`
    exists or another writer holds it.
    """

    def __init__(self, root: Path, *, resume: bool = False) -> None:
        self.root = Path(root)
        self.path = self.root.parent / f".{self.root.name}.partial"
        self._refuse_existing()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot write to {self.root.parent}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise InputError(f"{self.root} is being written by another process; choose another folder") from None
        self.is_open = True
        # Its former holder may have published between our look and our lock.
        try:
            self._refuse_existing()
        except InputError:
            self._release()
            raise
        if not resume:
            self.clear()

    def _refuse_existing(self) -> None:
        if self.root.exists():
            raise InputError(f"{self.root} exists; choose another folder or remove it first")

    def clear(self) -> None:
        """Empty the folder."""
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _release(self) -> None:
        os.close(self._lock)
        self.is_open = False

    def publish(self, part: str = "") -> None:
        """Put the folder, or only its subfolder `part`, in its place. Raises InputError when something lies there."""
        self._refuse_existing()
        (self.path / part).rename(self.root)
        if part:
            shutil.rmtree(self.path)
        self._release()

    def leave(self) -> None:
        """Give up the claim and keep what is written, for another claim to go on with. Nothing after `publish`."""
        if self.is_open:
            self._release()

    def discard(self) -> None:
        """Remove everything written. Does nothing after `publish`."""
        if self.is_open:
            shutil.rmtree(self.path)
            self._release()
