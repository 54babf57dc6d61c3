"""Meta-World v3: 50 manipulation tasks of one Sawyer arm, with the scripted experts that the package ships."""

from __future__ import annotations

from vlarge.sim.config import SimConfig
from vlarge.sim.metaworld.env import MetaworldEnv, instructions


def tasks() -> tuple[str, ...]:
    return tuple(instructions())


def make(task: str, config: SimConfig) -> MetaworldEnv:
    return MetaworldEnv(task, config)
