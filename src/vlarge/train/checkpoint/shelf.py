"""The folder `checkpoints/` on the disk: what is complete in it, what was left half done, and what is kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vlarge.contracts import InputError

CHECKPOINTS, LAST = "checkpoints", "last"
POLICY, STATE = "pretrained_model", "training_state"
PROMOTED = "promoted"  # a file in a checkpoint that is to stay
PARTIAL, REMOVED = "partial", "removed"


class Shelf:
    """<step>/{pretrained_model, training_state}, each good, and `last` -> the newest.

    A checkpoint gets its name last and loses it first, so that whatever has a number is complete. One process changes
    the folder; all may look.
    """

    def __init__(self, path: Path, keep_last: int) -> None:
        self.path = path
        self.keep_last = keep_last

    def final(self, step: int) -> Path:
        return self.path / f"{step:08d}"

    def partial(self, step: int) -> Path:
        return self._aside(self.final(step), PARTIAL)

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        return max(self._complete(), default=None)

    def before(self, final: Path) -> Path | None:
        """The newest complete checkpoint that is older than one of them."""
        return max((each for each in self._complete() if each.name < final.name), default=None)

    def clear(self, step: int) -> None:
        """Make room for a checkpoint. Raises InputError where it is there already; removes what killed runs left."""
        if self.final(step).exists():
            raise InputError("it is there already, of an earlier run: remove it and those after it")
        for left in [*self.path.glob(f".*.{PARTIAL}"), *self.path.glob(f".*.{REMOVED}")]:
            shutil.rmtree(left)
        self.partial(step).mkdir(parents=True)

    def publish(self, step: int) -> None:
        """Give a checkpoint its name, once every byte of it is on the disk, and let old ones go."""
        partial, final = self.partial(step), self.final(step)
        flush(partial)
        partial.rename(final)
        self.point_last_at(final)
        self._prune()

    def point_last_at(self, final: Path) -> None:
        """Where `last` does not already."""
        last, link = self.path / LAST, self.path / f".{LAST}"
        if last.is_symlink() and last.readlink() == Path(final.name):
            return
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        link.replace(last)
        _sync(self.path)

    def drop(self, step: int) -> None:
        """Remove what there is of a checkpoint that failed."""
        shutil.rmtree(self.partial(step), ignore_errors=True)

    def _prune(self) -> None:
        spare = sorted(self._complete())[: -self.keep_last] if self.keep_last else []
        for old in spare:
            if not (old / PROMOTED).exists():
                aside = self._aside(old, REMOVED)
                old.rename(aside)
                shutil.rmtree(aside)

    def _complete(self) -> list[Path]:
        return [path for path in self.path.glob("*") if path.name.isdigit()]

    def _aside(self, final: Path, what: str) -> Path:
        return self.path / f".{final.name}.{what}"


def flush(folder: Path) -> None:
    """Make every file and folder below durable."""
    for path in [folder, *folder.rglob("*")]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
