"""A run directory: one run writes to it at a time, and a new run never overwrites an old one."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.models.config import ModelConfig


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the directory for this process. Raises InputError when another run has it, or it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise InputError(f"cannot write to the run directory {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another run is writing to {folder}; choose another --run.dir") from None
        yield


def check_no_file(folder: Path) -> None:
    """Raise InputError if `folder` is a file."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; choose a folder as --run.dir")


def holds_run(folder: Path) -> bool:
    return (folder / "steps.jsonl").exists() or (folder / "checkpoints").exists()


def check_vacant(folder: Path) -> None:
    """Raise InputError if `folder` already holds a run, or is a file."""
    check_no_file(folder)
    if holds_run(folder):
        raise InputError(f"{folder} already holds a run: continue it with --resume, or choose another --run.dir")


def check_same_model(folder: Path, model: ModelConfig) -> None:
    """Raise InputError where the run in `folder` began with another model, or another part of it to train."""
    if not (folder / "recipe.toml").is_file():
        return
    before = recipes.load([folder / "recipe.toml"]).model
    for field in fields(ModelConfig):
        began, now = getattr(before, field.name), getattr(model, field.name)
        if began != now and field.name != "attention":  # which changes how, not what
            raise InputError(
                f"model.{field.name} was {began!r} when this run began and is {now!r}: resume with the value it had, or"
                " start a new run with model.init"
            )


def truncate_steps(path: Path, step: int) -> None:
    """Drop the lines of steps.jsonl from `step` on (and a half-written last line): a resume writes them again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            break
    path.write_text("".join(f"{line}\n" for line in kept))
