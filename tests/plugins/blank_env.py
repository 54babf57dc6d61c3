"""An environment of a few steps that LeRobot knows as `--env.type=blank`: one camera, a state, no success."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

CAMERA, STATE_DIM, ACTION_DIM = "top", 5, 4


class Blank(gym.Env):
    metadata = {"render_fps": 10, "render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gym.spaces.Dict(
        pixels=gym.spaces.Dict({CAMERA: gym.spaces.Box(0, 255, (48, 64, 3), np.uint8)}),
        agent_pos=gym.spaces.Box(-1, 1, (STATE_DIM,), np.float32),
    )
    action_space = gym.spaces.Box(-100, 100, (ACTION_DIM,), np.float32)
    task = task_description = "do nothing"

    def __init__(self, render_mode: str) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._observation(), {"is_success": False}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        assert np.isfinite(action).all()
        return self._observation(), 0.0, False, False, {"is_success": False}

    def render(self) -> np.ndarray:
        return self._observation()["pixels"][CAMERA]

    def _observation(self) -> dict[str, Any]:
        return {
            "pixels": {CAMERA: self.np_random.integers(0, 256, (48, 64, 3), np.uint8)},
            "agent_pos": self.np_random.uniform(-1, 1, STATE_DIM).astype(np.float32),
        }


gym.register("gym_blank/blank", Blank, max_episode_steps=7)


@EnvConfig.register_subclass("blank")
@dataclass
class BlankEnv(EnvConfig):
    task: str = "blank"
    features: dict[str, PolicyFeature] = field(
        default_factory=lambda: {
            "action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (STATE_DIM,)),
            CAMERA: PolicyFeature(FeatureType.VISUAL, (48, 64, 3)),
        }
    )
    features_map: dict[str, str] = field(
        default_factory=lambda: {
            "action": "action",
            "agent_pos": "observation.state",
            CAMERA: f"observation.images.{CAMERA}",
        }
    )

    @property
    def gym_kwargs(self) -> dict:
        return {"render_mode": "rgb_array"}
