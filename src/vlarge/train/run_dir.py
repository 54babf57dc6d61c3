"""A run directory: one run writes to it at a time, and a new run never overwrites an old one."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.models.config import ModelConfig
from vlarge.recipe import Recipe
from vlarge.train.track.jsonl import read_lines


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


def recorded(folder: Path) -> Recipe | None:
    """The recipe of the run in `folder`, with what it found out itself. Raises InputError where it cannot be read."""
    path = folder / "recipe.toml"
    try:
        return recipes.load([path]) if path.is_file() else None
    except InputError as error:
        raise InputError(
            f"{error}; mend it, or remove it and resume with the recipe that the run began with"
        ) from error


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
    began_as = recorded(folder)
    if began_as is None:
        return
    before = began_as.model
    for field in fields(ModelConfig):
        began, now = getattr(before, field.name), getattr(model, field.name)
        if began != now and field.name != "attention":  # which changes how, not what
            raise InputError(
                f"model.{field.name} was {began!r} when this run began and is {now!r}: resume with the value it had, or"
                " start a new run with model.init"
            )


def truncate_steps(path: Path, step: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Drop the lines of steps.jsonl after `step` (and a half-written last line): a resume writes them again.

    Returns the lines that were kept, and those that were dropped.
    """
    lines = [line for line in read_lines(path) if "step" in line]
    kept = [line for line in lines if line["step"] <= step]
    if path.exists():
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    return kept, [line for line in lines if line["step"] > step]
