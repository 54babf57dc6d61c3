"""A simulator of a few lines, for tests that start processes: a point on a line that must reach 1.

Task "line": the key decides the start. Tasks "crash" (as by the kernel when memory is short), "hang", "raise", "reset"
(an exception there) and "nan" (in the state) do so in the episode with init_id 1, as often as the file named by FAULTS
says (one byte each time); the experts of "moody" and "hopeless" do not always succeed.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from vlarge.contracts import EnvSpec, EpisodeKey, Observation, Step
from vlarge.sim.config import SimConfig
from vlarge.sim.spec import checked_action, episode_seed

TASKS = ("line", "crash", "hang", "raise", "done", "endless", "moody", "hopeless", "reset", "nan")
FAULTS = "fake_sim_faults"  # file in the working directory: faults still to come


def tasks() -> tuple[str, ...]:
    return TASKS


def make(task: str, config: SimConfig) -> "LineEnv":
    return LineEnv(task, config)


class LineEnv:
    def __init__(self, task: str, config: SimConfig) -> None:
        self._task = task
        self.spec = EnvSpec(
            task=f"fake/{task}",
            instruction="go to one",
            cameras={f"observation.images.{name}": (config.image_size,) * 2 for name in config.cameras},
            state_names=("x",),
            action_names=("dx",),
            action_low=(-1.0,),
            action_high=(1.0,),
            action_convention="displacement",
            control_hz=20.0,
            horizon=config.horizon or 40,
            metric="success_once",
            render_quality=config.render_quality,
            reset_mode="set",
            simulator="fake 1",
        )
        self.num_rendered = 0

    def reset(self, key: EpisodeKey) -> None:
        self._key = key
        self._num_steps = 0
        if key.init_id == 1 and self._task == "reset" and fault_due():
            raise ArithmeticError("no start was found")
        self.x = (episode_seed(key) % 1000) / 2000
        self.success_at_reset = self._task == "done"

    def observe(self) -> Observation:
        self.num_rendered += 1
        image = np.full((*next(iter(self.spec.cameras.values())), 3), int(np.clip(self.x * 200, 0, 255)), np.uint8)
        sick = self._task == "nan" and self._key.init_id == 1 and self._num_steps == 4 and fault_due()
        state = np.array([np.nan if sick else self.x], np.float32)
        return Observation(dict.fromkeys(self.spec.cameras, image), state, "go to one")

    def step(self, action_A: np.ndarray) -> Step:
        self._num_steps += 1
        self.x += float(checked_action(action_A, self.spec)[0]) / 10
        if self._key.init_id == 1 and self._num_steps == 3 and self._task in ("crash", "hang", "raise") and fault_due():
            if self._task == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._task == "hang":
                time.sleep(600)
            raise ArithmeticError("the simulation blew up")
        truncated = self._task != "endless" and self._num_steps >= self.spec.horizon
        return Step(reward=self.x, success=self.x >= 1 or self._task == "done", truncated=truncated)

    def expert(self) -> np.ndarray:
        """Full speed ahead, slower near the end; fails every third key of "moody" and every key of "hopeless"."""
        if self._task == "hopeless" or (self._task == "moody" and self._key.init_id % 3 == 1):
            return np.zeros(1, np.float32)
        return np.array([1.0 if np.float32(self.x) < 0.8 else 0.5], np.float32)

    def close(self) -> None: ...


def fault_due() -> bool:
    path = Path(FAULTS)
    left = path.read_bytes() if path.exists() else b""
    path.write_bytes(left[1:])
    return bool(left)


class NoisyPolicy:
    """Walks towards one with noise from the key; chunks of four."""

    name = "noisy"
    action_horizon = 4

    def check(self, spec: EnvSpec) -> None: ...

    def infer(self, observation: Observation, noise_key: tuple[int, ...]) -> np.ndarray:
        noise = np.random.default_rng(noise_key).normal(0.1, 0.6, (4, 1))
        return (noise + observation.state[0] * 0.1).astype(np.float32)


class SickPolicy(NoisyPolicy):
    """NaN once half way there."""

    name = "sick"

    def infer(self, observation: Observation, noise_key: tuple[int, ...]) -> np.ndarray:
        return np.full((4, 1), np.nan if observation.state[0] > 0.5 else 1.0, np.float32)


def noisy() -> NoisyPolicy:
    return NoisyPolicy()


def sick() -> SickPolicy:
    return SickPolicy()
