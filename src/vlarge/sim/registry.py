"""Environments by name, "<simulator>/<task>".

A simulator is a package of `vlarge.sim` with an env.py, or a module that an installed distribution names in the entry
point group "vlarge.sim" (entry name = simulator name). Either offers two functions:

    tasks() -> tuple[str, ...]                  names of its tasks; imports nothing heavy
    make(task: str, config: SimConfig) -> Env   one environment

and may have `ANY_TASK = True`: `make` is asked for names that are not among `tasks()`, too.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from vlarge.contracts import Env, InputError
from vlarge.sim.config import SimConfig

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "vlarge.sim"


def make_env(name: str, config: SimConfig | None = None) -> Env:
    """The environment called `name`, for instance "metaworld/drawer-close-v3". Raises InputError on an unknown name."""
    simulator, slash, task = name.partition("/")
    if not slash:
        raise InputError(
            f"environment {name!r} has no simulator: write <simulator>/<task>{_nearest(name, list_envs())}"
        )
    module = _simulator(simulator)
    tasks = module.tasks()
    if task not in tasks and not getattr(module, "ANY_TASK", False):
        hint = _nearest(name, [f"{simulator}/{other}" for other in tasks])
        raise InputError(f"simulator {simulator!r} has no task {task!r}{hint}")
    env: Env = module.make(task, config or SimConfig())
    return env


def list_envs() -> tuple[str, ...]:
    """Every environment name at hand, sorted."""
    return tuple(f"{name}/{task}" for name in _names() for task in sorted(_simulator(name).tasks()))


def _simulator(name: str) -> ModuleType:
    for entry in _entry_points():
        if entry.name == name:
            module: ModuleType = entry.load()
            return module
    if name in _own_names():
        return importlib.import_module(f"vlarge.sim.{name}")
    raise InputError(f"no simulator called {name!r}; at hand: {', '.join(_names())}{_nearest(name, _names())}")


def _names() -> list[str]:
    return sorted({*_own_names(), *(entry.name for entry in _entry_points())})


def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=ENTRY_POINTS))


def _own_names() -> list[str]:
    package = importlib.import_module("vlarge.sim")
    return sorted(file.parent.name for folder in package.__path__ for file in Path(folder).glob("*/env.py"))


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
