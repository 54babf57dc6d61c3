"""What a Gymnasium id leaves unsaid: the instruction, how actions are meant, how a state is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

IMAGE = "observation.image"  # LeRobot's name of an environment's only camera

Look = Callable[[Any], np.ndarray]


def _rendered(env: Any) -> np.ndarray:
    return np.asarray(env.render())


@dataclass(frozen=True)
class Profile:
    """distribution: what to install. options: for `gymnasium.make`. size: its options for a picture's height and width.

    look: the picture of an unwrapped environment's present state, upright. state: an observation's parts that make the
    state, in order; none: all that are vectors. hz: control rate; 0: what the environment says it is.
    """

    distribution: str = ""
    instruction: str = ""
    action_convention: str = "as the environment's action space has it"
    options: Mapping[str, Any] = field(default_factory=dict)
    size: tuple[str, str] | None = None
    look: Look = _rendered
    state: tuple[str, ...] = ()
    hz: float = 0.0

    @property
    def is_installed(self) -> bool:
        return not self.distribution or find_spec(self.distribution.replace("-", "_")) is not None


def _pusht(env: Any) -> np.ndarray:
    # What its observations with pixels show, drawn when somebody looks and not with every step.
    return np.asarray(env._render())


def _fetch(what: str) -> Profile:
    return Profile(
        distribution="gymnasium-robotics",
        instruction=what,
        action_convention="hand displacement, 1 = 5 cm per step; gripper, -1 closes and 1 opens",
        size=("height", "width"),
        state=("observation", "desired_goal"),
    )


KNOWN: Mapping[str, Profile] = {
    "gym_pusht/PushT-v0": Profile(
        distribution="gym-pusht",
        instruction="push the T-shaped block onto the T-shaped target",
        action_convention="where the pusher is to go, in pixels of a 512 x 512 field",
        options={"obs_type": "environment_state_agent_pos"},
        size=("observation_height", "observation_width"),
        look=_pusht,
        state=("agent_pos",),
        hz=10.0,
    ),
    "gymnasium_robotics:FetchReach-v4": _fetch("move the gripper to the red mark"),
    "gymnasium_robotics:FetchPush-v4": _fetch("push the box to the red mark"),
    "gymnasium_robotics:FetchSlide-v4": _fetch("hit the puck so that it slides to the red mark"),
    "gymnasium_robotics:FetchPickAndPlace-v4": _fetch("pick up the box and bring it to the red mark"),
}
