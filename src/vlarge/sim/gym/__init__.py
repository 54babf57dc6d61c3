"""Any Gymnasium environment, "gym/<id>" or "gym/<module>:<id>"; of some it is known what their ids leave out."""

from __future__ import annotations

from vlarge.sim.config import SimConfig
from vlarge.sim.gym.env import GymEnv
from vlarge.sim.gym.profiles import KNOWN

ANY_TASK = True  # Gymnasium's registry knows more than is listed here


def tasks() -> tuple[str, ...]:
    return tuple(task for task, profile in KNOWN.items() if profile.is_installed)


def make(task: str, config: SimConfig) -> GymEnv:
    return GymEnv(task, config)
