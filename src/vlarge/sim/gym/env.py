"""The Gymnasium adapter: an environment without its wrappers, so that nothing resets, truncates or counts unasked."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from vlarge.contracts import EnvSpec, EpisodeKey, InputError, Observation, Step
from vlarge.sim.config import SimConfig
from vlarge.sim.gym.profiles import IMAGE, KNOWN, Profile
from vlarge.sim.mujoco_rendering import import_mujoco, set_quality
from vlarge.sim.spec import check_config, check_key, checked_action, episode_seed

SUCCESS = ("is_success", "success")  # what environments call it in their info


class GymEnv:
    """One Gymnasium id behind `contracts.Env`. The seed of an episode decides its start as far as the environment's own
    `reset(seed=…)` does: `vlarge sim check` tries it.

    Raises InputError for an id that is not known, for actions that are not a vector of bounded numbers, for an
    environment that draws no picture, and with the first step of one that does not say whether it is a success.
    """

    success_at_reset: bool

    def __init__(self, task: str, config: SimConfig) -> None:
        check_config(config)
        self._profile = KNOWN.get(task, Profile())
        self._env, registered = _made(task, self._profile, config)
        self._is_mujoco = _is_mujoco(self._env)
        self._is_over = True
        self._raw: Any = None
        try:
            self.spec = self._promised(task, config, registered)
        except BaseException:
            self._env.close()
            raise

    def reset(self, key: EpisodeKey) -> None:
        """Start the episode that `key` decides."""
        check_key(key, self.spec)
        self._raw, info = self._env.reset(seed=episode_seed(key))
        self._num_steps, self._is_over = 0, False
        self._began_s = float(self._env.data.time) if self._is_mujoco else 0.0
        self.success_at_reset = bool(self._success(info))

    def observe(self) -> Observation:
        """The picture, and the state's vectors one after the other, float32."""
        image = np.array(self._profile.look(self._env), dtype=np.uint8)
        return Observation({IMAGE: image}, _state(self._raw, self._profile), self.spec.instruction)

    def step(self, action_A: np.ndarray) -> Step:
        """Raises InputError on a non-finite action, RuntimeError after the episode's end."""
        if self._is_over:
            raise RuntimeError(f"{self.spec.task}: no episode is under way; reset it")
        action_A = checked_action(action_A, self.spec)
        self._raw, reward, terminated, truncated, info = self._env.step(action_A)
        self._num_steps += 1
        success = self._success(info)
        if success is None:
            raise InputError(
                f"{self.spec.task} does not say whether a step is a success: its info has none of {', '.join(SUCCESS)}"
            )
        step = Step(
            reward=float(reward),
            success=success,
            truncated=bool(truncated or self._num_steps >= self.spec.horizon),
            terminal=bool(terminated),
        )
        self._is_over = step.is_last
        return step

    def close(self) -> None:
        """May be called more than once."""
        if self._env is not None:
            self._env.close()
            self._env = None

    @property
    def time_s(self) -> float:
        """Simulated seconds since the reset, of an environment of MuJoCo's; AttributeError for others."""
        return float(self._env.data.time - self._began_s)

    def _success(self, info: dict[str, Any]) -> bool | None:
        """None where the environment does not say."""
        told = next((info[name] for name in SUCCESS if name in info), None)
        if told is None and hasattr(self._env, "_is_success"):  # robotics environments tell with steps only
            told = self._env._is_success(self._raw["achieved_goal"], self._env.goal)
        return None if told is None else bool(told)

    def _promised(self, task: str, config: SimConfig, registered: Any) -> EnvSpec:
        env, profile = self._env, self._profile
        low, high = _bounds(task, env.action_space)
        horizon = config.horizon or registered.max_episode_steps
        if not horizon:
            raise InputError(f"gym/{task} has no end of its own: set sim.horizon to a number of control steps")
        self._raw, _ = env.reset(seed=0)
        height, width = _drawn(task, profile.look(env))
        return EnvSpec(
            task=f"gym/{task}",
            instruction=profile.instruction or _spoken(task),
            cameras={IMAGE: (height, width)},
            state_names=_names(self._raw, profile),
            action_names=tuple(f"action_{i}" for i in range(len(low))),
            action_low=low,
            action_high=high,
            action_convention=profile.action_convention,
            control_hz=profile.hz or (1 / env.dt if self._is_mujoco else float(env.metadata.get("render_fps", 1))),
            horizon=horizon,
            metric="success_once",
            render_quality=config.render_quality if self._is_mujoco else "full",
            reset_mode="reset(seed)",
            simulator=_versions(profile, is_mujoco=self._is_mujoco),
        )


def _made(task: str, profile: Profile, config: SimConfig) -> tuple[Any, Any]:
    """An environment without wrappers, and how it is registered."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it prints to where answers go
    gymnasium = _gymnasium(task, profile)
    options = dict(profile.options)
    if profile.size:
        options |= dict.fromkeys(profile.size, config.image_size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is old in other packages, and of ids with newer versions
            made = gymnasium.make(task, render_mode="rgb_array", disable_env_checker=True, **options)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InputError(f"gym/{task} cannot be made: {str(error).splitlines()[0]}") from error
    env = made.unwrapped
    if _is_mujoco(env):
        set_quality(env.model, config.image_size, config.render_quality)
    return env, made.spec


def _is_mujoco(env: Any) -> bool:
    return hasattr(env, "model") and hasattr(env, "data")


def _gymnasium(task: str, profile: Profile) -> Any:
    if not profile.is_installed:
        raise InputError(f"gym/{task} needs {profile.distribution}: pip install {profile.distribution}")
    with contextlib.suppress(InputError):  # not all need it
        import_mujoco()  # with a GL backend chosen, before an environment imports it
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            import gymnasium

            module = task.partition(":")[0] if ":" in task else task.partition("/")[0] if "/" in task else ""
            if module:
                __import__(module)
    except ModuleNotFoundError as error:
        raise InputError(f"gym/{task} needs the Python package {error.name}: install it") from error
    return gymnasium


def _bounds(task: str, space: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or low.ndim != 1 or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InputError(f"gym/{task} takes actions of {space}; a policy gives a vector of bounded numbers")
    return tuple(map(float, low)), tuple(map(float, high))


def _drawn(task: str, picture: Any) -> tuple[int, int]:
    if picture is None or getattr(picture, "ndim", 0) != 3 or picture.shape[2] != 3:
        raise InputError(f"gym/{task} draws no RGB picture with render_mode='rgb_array'")
    return int(picture.shape[0]), int(picture.shape[1])


def _parts(raw: Any, profile: Profile) -> dict[str, np.ndarray]:
    """The vectors of an observation that make the state, by their names."""
    if not isinstance(raw, dict):
        return {"state": np.asarray(raw)} if np.ndim(raw) == 1 else {}
    names = profile.state or tuple(name for name, value in raw.items() if np.ndim(value) == 1)
    return {name: np.asarray(raw[name]) for name in names}


def _state(raw: Any, profile: Profile) -> np.ndarray:
    parts = list(_parts(raw, profile).values())
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)


def _names(raw: Any, profile: Profile) -> tuple[str, ...]:
    return tuple(f"{name}_{i}" for name, part in _parts(raw, profile).items() for i in range(len(part)))


def _spoken(task: str) -> str:
    """An id as words: "FetchPickAndPlace-v4" is "fetch pick and place"."""
    name = re.sub(r"-v\d+$", "", re.split(r"[:/]", task)[-1])
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()


def _versions(profile: Profile, *, is_mujoco: bool) -> str:
    distributions = [profile.distribution, "gymnasium", "mujoco" if is_mujoco else ""]
    return ", ".join(f"{name} {_version(name)}" for name in distributions if name)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of a checkout"
