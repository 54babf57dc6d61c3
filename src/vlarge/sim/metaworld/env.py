"""The Meta-World adapter.

Every episode runs in a new simulation, built from a model that is compiled once. So nothing an earlier episode left
behind (solver warm starts, moved bodies, mocap targets, Python attributes) can reach it: law E1 by construction.
"""

from __future__ import annotations

import copy
import functools
import importlib.resources
import tomllib
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from vlarge.contracts import IMAGE_PREFIX, EnvSpec, EpisodeKey, InputError, Observation, Step
from vlarge.sim.config import SimConfig
from vlarge.sim.mujoco_rendering import (
    FixedView,
    FreeView,
    MujocoRenderer,
    View,
    explained_imports,
    import_mujoco,
    set_quality,
)
from vlarge.sim.spec import check_config, check_key, checked_action, episode_seed

HORIZON = 500  # Meta-World's own, `SawyerXYZEnv.max_path_length`
STATE_NAMES = ("x", "y", "z", "gripper")  # hand position in metres; gripper opening, 0 closed to 1 open

VIEWS: dict[str, View] = {
    # Fills the picture with the work area: hand, object and goal stay visible in every phase.
    "close": FreeView(lookat=(-0.03, 0.71, 0.13), distance_m=0.88, azimuth=135.0, elevation=-35.0),
    "overhead": FreeView(lookat=(0.0, 0.72, 0.1), distance_m=0.95, azimuth=90.0, elevation=-89.0),
    # LeRobot moves "corner2" to exactly where the model has "corner4"; the name means the same picture here.
    "corner2": FixedView("corner4", upside_down=True),
    "corner": FixedView("corner", upside_down=True),
    "corner3": FixedView("corner3", upside_down=True),
    "topview": FixedView("topview"),
    "behindGripper": FixedView("behindGripper"),
    "gripperPOV": FixedView("gripperPOV"),
}


@functools.cache
def instructions() -> dict[str, str]:
    """Task name -> one sentence that tells a person what to do."""
    text = importlib.resources.files(__package__).joinpath("instructions.toml").read_text(encoding="utf-8")
    return {task: str(sentence) for task, sentence in tomllib.loads(text).items()}


@dataclass(frozen=True)
class Snapshot:
    """A simulation of its own, and what the environment knows beside it."""

    simulation: Any
    raw_observation: np.ndarray
    num_steps: int
    began_s: float
    success_at_reset: bool


class MetaworldEnv:
    """One Meta-World task behind `contracts.Env`.

    The policy sees the pictures and the hand; `expert` also sees object and goal. `success_at_reset` says whether the
    present episode began in a state that counts as success.
    """

    success_at_reset: bool

    def __init__(self, task: str, config: SimConfig) -> None:
        check_config(config)
        unknown = [camera for camera in config.cameras if camera not in VIEWS]
        if unknown:
            raise InputError(f"Meta-World has no camera {unknown[0]!r}; known: {', '.join(VIEWS)}")
        self._task = task
        self._config = config
        self.spec = _spec(task, config)
        self._open_renderer: MujocoRenderer | None = None
        self._expert: Any = None
        self._simulation: Any = None
        self._raw_observation = np.zeros(0)
        self._num_steps = 0
        self._began_s = 0.0

    def reset(self, key: EpisodeKey) -> None:
        """Start the episode that `key` decides, in a simulation of its own."""
        check_key(key, self.spec)
        self._simulation = _new_simulation(self._task_class, self._model, episode_seed(key))
        self._simulation.max_path_length = self.spec.horizon
        self._raw_observation = _settle(self._simulation)
        self._num_steps = 0
        self._began_s = float(self._simulation.data.time)
        self.success_at_reset = _is_success(self._simulation, self._raw_observation)

    def observe(self) -> Observation:
        """The configured cameras' pictures, and hand position and gripper opening, float32 [4]."""
        simulation = self._running_simulation()
        images = {
            IMAGE_PREFIX + name: self._renderer().render(simulation.model, simulation.data, VIEWS[name])
            for name in self._config.cameras
        }
        state_A = self._raw_observation[: len(STATE_NAMES)].astype(np.float32)
        return Observation(images=images, state=state_A, task=self.spec.instruction)

    def step(self, action_A: np.ndarray) -> Step:
        """One control step of 12.5 ms. Raises InputError on a non-finite action, RuntimeError after the horizon."""
        simulation = self._running_simulation()
        if self._num_steps >= self.spec.horizon:
            raise RuntimeError(f"{self.spec.task}: the episode was truncated after {self.spec.horizon} steps; reset it")
        action_A = checked_action(action_A, self.spec)
        self._raw_observation, reward, _, _, info = simulation.step(action_A)
        self._num_steps += 1
        truncated = self._num_steps >= self.spec.horizon
        return Step(reward=float(reward), success=bool(info["success"]), truncated=truncated)

    def expert(self) -> np.ndarray:
        """The scripted expert's action for the present state, float32 [4], clipped to the action range."""
        self._running_simulation()
        if self._expert is None:
            from metaworld.policies import ENV_POLICY_MAP

            experts: dict[str, Any] = ENV_POLICY_MAP
            self._expert = experts[self._task]()
        with warnings.catch_warnings():
            # It warns that its gains ask for more than the action range; clipping is what the range means.
            warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
            action_A = self._expert.get_action(self._raw_observation)
        return checked_action(action_A, self.spec)

    def marked_image(self, camera: str) -> np.ndarray:
        """What proves a picture's orientation: see `contracts.Env`."""
        simulation = self._running_simulation()
        view = VIEWS[camera.removeprefix(IMAGE_PREFIX)]
        return self._renderer().render_marks(simulation.model, simulation.data, view)

    @property
    def time_s(self) -> float:
        """Simulated seconds since the reset."""
        return float(self._running_simulation().data.time - self._began_s)

    def snapshot(self) -> Snapshot:
        """The present state, to go on from it later and as often as wanted."""
        simulation = _copied(self._running_simulation())
        return Snapshot(simulation, self._raw_observation.copy(), self._num_steps, self._began_s, self.success_at_reset)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot of an environment of this task."""
        self._simulation = _copied(snapshot.simulation)
        self._raw_observation = snapshot.raw_observation.copy()
        self._num_steps, self._began_s = snapshot.num_steps, snapshot.began_s
        self.success_at_reset = snapshot.success_at_reset

    def close(self) -> None:
        """Free the renderer. May be called more than once."""
        if self._open_renderer is not None:
            self._open_renderer.close()
            self._open_renderer = None
        self._simulation = None

    def _renderer(self) -> MujocoRenderer:
        if self._open_renderer is None:
            self._open_renderer = MujocoRenderer(self._model, self._config.image_size, self._config.render_quality)
        return self._open_renderer

    # Compiled at the first reset, not before: whoever only asks for the spec does not wait for it.
    @functools.cached_property
    def _model(self) -> Any:
        model = self._task_class().model
        set_quality(model, self._config.image_size, self._config.render_quality)
        return model

    @functools.cached_property
    def _task_class(self) -> Any:
        import_mujoco()  # before Meta-World imports it without a GL backend
        with explained_imports():
            from metaworld.env_dict import ENV_CLS_MAP
        return ENV_CLS_MAP[self._task]

    def _running_simulation(self) -> Any:
        if self._simulation is None:
            raise RuntimeError(f"{self.spec.task}: call reset(key) first")
        return self._simulation


def _spec(task: str, config: SimConfig) -> EnvSpec:
    with explained_imports():
        versions = f"metaworld {version('metaworld')}, mujoco {version('mujoco')}"
    size = (config.image_size, config.image_size)
    return EnvSpec(
        task=f"metaworld/{task}",
        instruction=instructions()[task],
        cameras={IMAGE_PREFIX + name: size for name in config.cameras},
        state_names=STATE_NAMES,
        action_names=STATE_NAMES,
        action_low=(-1.0,) * len(STATE_NAMES),
        action_high=(1.0,) * len(STATE_NAMES),
        action_convention="hand displacement, 1 = 1 cm per step; gripper effort, -1 opens and 1 closes",
        control_hz=80.0,
        horizon=config.horizon or HORIZON,
        metric="success_once",
        render_quality=config.render_quality,
        reset_mode="new simulation",
        simulator=versions,
    )


def _new_simulation(task_class: Any, model: Any, seed: int) -> Any:
    """Meta-World's own environment in the state that `seed` decides; the compiled model is copied, not compiled."""
    mujoco = import_mujoco()

    class Simulation(task_class):
        def _initialize_simulation(self) -> tuple[Any, Any]:
            own_model = copy.copy(model)
            return own_model, mujoco.MjData(own_model)

    simulation = Simulation()
    # `reset(seed=...)` ignores its argument; drawing object and goal from the generator that `seed()` sets does not.
    simulation._freeze_rand_vec = False
    simulation.seeded_rand_vec = True
    simulation._set_task_called = True
    # The expert needs the goal. The bounds that observations are clipped to are cached without it: drop them.
    simulation._partially_observable = False
    del simulation.sawyer_observation_space
    simulation.seed(seed)
    simulation.reset()
    return simulation


def _copied(simulation: Any) -> Any:
    """With model, data and all Python attributes: MuJoCo's state alone does not decide what comes next."""
    copied = object.__new__(type(simulation))
    # Not copy.deepcopy of the whole: EzPickle would make a new one from its arguments.
    copied.__dict__.update(copy.deepcopy(simulation.__dict__, {id(simulation): copied}))
    return copied


def _settle(simulation: Any) -> np.ndarray:
    """Let positions that `reset` wrote last (goal sites) reach the pictures. Returns the raw observation."""
    import_mujoco().mj_forward(simulation.model, simulation.data)
    simulation._prev_obs = simulation._get_curr_obs_combined_no_goal()
    raw_observation: np.ndarray = simulation._get_obs()
    return raw_observation


def _is_success(simulation: Any, raw_observation: np.ndarray) -> bool:
    """Whether the present state counts as success; asking changes nothing."""
    attributes = dict(simulation.__dict__)
    _, info = simulation.evaluate_state(raw_observation, np.zeros(len(STATE_NAMES), dtype=np.float32))
    simulation.__dict__.clear()
    simulation.__dict__.update(attributes)
    return bool(info["success"])
