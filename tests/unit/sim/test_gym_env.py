"""Gymnasium's environments behind the contract: PushT, Fetch, and ids that nothing is known of."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from vlarge.contracts import EpisodeKey, InputError
from vlarge.evaluate import run
from vlarge.evaluate.config import EvaluateConfig
from vlarge.evaluate.plan import make_plan
from vlarge.sim import list_envs, make_env
from vlarge.sim.config import SimConfig
from vlarge.sim.conformance import Trial, check_env
from vlarge.sim.gym.env import GymEnv, _spoken
from vlarge.sim.spec import episode_seed

PUSHT, REACH = "gym/gym_pusht/PushT-v0", "gym/gymnasium_robotics:FetchReach-v4"
SMALL = SimConfig(image_size=64)


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps and resets; ends by itself at the third step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 4.0]), dtype=np.float64)
    num_resets = 0

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        Counter.num_resets += 1
        self.at = np.array([0.0, self.np_random.uniform()])
        return self.at, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at = self.at + np.array([1, action[1]])
        return self.at, 0.5, self.at[0] >= 3, False, {"success": self.at[0] >= 3}

    def render(self) -> np.ndarray:
        return np.full((8, 12, 3), int(10 * self.at[0]), np.uint8)


@pytest.fixture(autouse=True)
def counter() -> Any:
    gymnasium.register("Counter-v3", Counter, max_episode_steps=7)
    yield
    del gymnasium.registry["Counter-v3"]


@pytest.mark.parametrize("name", [PUSHT, pytest.param(REACH, marks=pytest.mark.long)])
def test_known_ones_keep_their_promises(name: str) -> None:
    trial = Trial(Maker(name), num_cycles=5, num_resets=60)
    assert [finding for finding in check_env(trial) if finding.verdict == "fault"] == []


class Maker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> Any:
        return make_env(self._name, SMALL)


def test_pusht_shows_what_its_own_observations_with_pixels_show() -> None:
    env = make_env(PUSHT, SimConfig(image_size=96))
    env.reset(EpisodeKey(PUSHT, 3, 1))
    action_A = np.array([100.0, 300.0], np.float32)
    for _ in range(4):
        env.step(action_A)
    ours = env.observe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels_agent_pos", disable_env_checker=True)
    theirs.reset(seed=episode_seed(EpisodeKey(PUSHT, 3, 1)))
    for _ in range(4):
        seen, *_ = theirs.step(action_A)
    assert np.array_equal(ours.images["observation.image"], seen["pixels"])
    assert np.array_equal(ours.state, seen["agent_pos"].astype(np.float32))
    env.close()
    theirs.close()


def test_an_unknown_id_is_taken_as_it_describes_itself() -> None:
    env = make_env("gym/Counter-v3")
    spec = env.spec
    assert (spec.cameras, spec.state_names) == ({"observation.image": (8, 12)}, ("state_0", "state_1"))
    assert (spec.action_low, spec.action_high) == ((-1.0, 0.0), (1.0, 4.0))
    assert (spec.horizon, spec.control_hz, spec.instruction, spec.render_quality) == (7, 5.0, "counter", "full")
    Counter.num_resets = 0
    env.reset(EpisodeKey(spec.task, 0, 0))
    steps = [env.step(np.array([5.0, 9.0], np.float32)) for _ in range(3)]
    ended = [(step.success, step.truncated, step.terminal) for step in steps]
    assert ended == [(False, False, False), (False, False, False), (True, False, True)]
    assert env.observe().state[1] == pytest.approx(env.observe().state[1])
    assert env.observe().state[1] > 12  # clipped to 4 a step
    with pytest.raises(RuntimeError, match="reset it"):
        env.step(np.zeros(2, np.float32))
    assert Counter.num_resets == 1
    env.close()
    env.close()


def test_one_that_ends_by_itself_is_checked_as_far_as_it_goes() -> None:
    found = {finding.check: finding for finding in check_env(Trial(Maker("gym/Counter-v3"), 3, 20), only=HERE)}
    assert found.pop("ends at the horizon").detail == "it ended by itself after 3 steps of doing nothing"
    assert {finding.verdict for finding in found.values()} == {"ok"}


HERE = (  # the others start processes, which do not know of Counter, or want what it does not offer
    "same start", "same actions, same episode", "keys differ", "as declared", "looking changes nothing",
    "ends at the horizon", "actions are checked", "success at reset is told", "opens and closes",
)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("Nothing-v9", "gym/Nothing-v9 cannot be made: "),
        ("no_such_module:Thing-v0", "needs the Python package no_such_module"),
        ("CartPole-v1", "a policy gives a vector of bounded numbers"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(task: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_env(f"gym/{task}")


def test_one_that_knows_no_success_is_refused_instead_of_never_succeeding() -> None:
    env = make_env("gym/Pendulum-v1")
    env.reset(EpisodeKey(env.spec.task, 0, 0))
    with pytest.raises(InputError, match="does not say whether a step is a success"):
        env.step(np.zeros(1, np.float32))
    env.close()


def test_one_without_an_end_needs_a_horizon() -> None:
    gymnasium.register("Endless-v0", Counter)
    with pytest.raises(InputError, match=r"gym/Endless-v0 has no end of its own: set sim\.horizon"):
        GymEnv("Endless-v0", SMALL)
    assert GymEnv("Endless-v0", SimConfig(horizon=9)).spec.horizon == 9
    del gymnasium.registry["Endless-v0"]


def test_those_that_are_known_are_listed() -> None:
    assert {PUSHT, REACH} <= set(list_envs())


def test_ids_become_words() -> None:
    assert _spoken("gymnasium_robotics:FetchPickAndPlace-v4") == "fetch pick and place"
    assert _spoken("gym_aloha/AlohaInsertion-v0") == "aloha insertion"


def test_an_evaluation_takes_them(tmp_path: Path) -> None:
    config = EvaluateConfig(tasks=(PUSHT,), episodes=2, videos=1, workers=1)
    plan = make_plan(config, SimConfig(image_size=64, horizon=10))
    summary = run.run(plan, "zero", tmp_path / "out", config)
    assert (summary["num_failure"], summary["num_infra_error"]) == (2, 0)
    assert list((tmp_path / "out/videos").glob("gym__gym_pusht__PushT-v0-*.mp4"))
