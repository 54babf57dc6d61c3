"""Checkpoints that are good or absent: written beside, flushed, then renamed into place (law T3)."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError

from vlarge.contracts import InputError

LAST = "last"


class Checkpoints:
    """The `checkpoints/` folder of a run: <step>/{pretrained_model, training_state}, and `last` -> the newest."""

    def __init__(self, run_dir: Path, keep_last: int) -> None:
        self.folder = run_dir / "checkpoints"
        self.keep_last = keep_last

    def save(self, step: int, write_policy: Callable[[Path], None], training_state: dict[str, Any]) -> Path:
        """Write checkpoint `step`. On failure nothing of it is left, `last` stays, and InputError says why."""
        final = self.folder / f"{step:08d}"
        if final.exists():
            return final
        staging = self.folder / f".{step:08d}.partial"
        for left in self.folder.glob(".*.partial"):  # by a process that was killed at it
            shutil.rmtree(left, ignore_errors=True)
        try:
            write_policy(staging / "pretrained_model")
            save_state(staging / "training_state", training_state)
            _flush(staging)
            staging.rename(final)
        except (OSError, SafetensorError, dcp.CheckpointException) as error:
            shutil.rmtree(staging, ignore_errors=True)
            why = "the disk is full" if os.strerror(errno.ENOSPC) in str(error) else _reason(error)
            raise InputError(f"could not save {final}: {why}; the checkpoints before it are untouched") from error
        self._point_last_at(final)
        self._prune()
        return final

    def last(self) -> Path | None:
        """The newest complete checkpoint, or None. Where somebody removed what `last` points to, the one before it."""
        link = self.folder / LAST
        return link.resolve() if link.exists() else max(self._complete(), default=None)

    def _point_last_at(self, final: Path) -> None:
        link = self.folder / f".{LAST}"
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        link.replace(self.folder / LAST)

    def _prune(self) -> None:
        for old in sorted(self._complete())[: -self.keep_last] if self.keep_last else []:
            shutil.rmtree(old)

    def _complete(self) -> list[Path]:
        return [path for path in self.folder.glob("*") if path.name.isdigit()]


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """torch.distributed.checkpoint of a state that this process holds whole."""
    with _quiet():
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def load_state(folder: Path, state: dict[str, Any]) -> None:
    """Fill `state` in place. This is torch's own format, which unpickles: resume only runs that you trust."""
    try:
        with _quiet():
            dcp.load(state, checkpoint_id=folder, no_dist=True)
    except (dcp.CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{folder} does not fit this run ({_reason(error)}); resume with its own recipe or, if it is damaged,"
            f" remove {folder.parent} and resume from the checkpoint before it"
        ) from error


def _reason(error: BaseException) -> str:
    """One line; of torch's collected failures, the first."""
    if isinstance(error, dcp.CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _quiet() -> warnings.catch_warnings[None]:
    # torch says at each call that no process group is open, which is meant here.
    return warnings.catch_warnings(action="ignore")


def _flush(folder: Path) -> None:
    """Make every file and folder below durable before the rename makes them visible."""
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
