"""What the Meta-World adapter promises: steps, actions, experts, names."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from vlarge.contracts import EpisodeKey, InputError
from vlarge.sim import list_envs, make_env
from vlarge.sim.config import SimConfig
from vlarge.sim.metaworld.env import VIEWS, instructions

TASK = "metaworld/reach-v3"
KEY = EpisodeKey(TASK, 0, 0)
NO_ACTION = np.zeros(4, dtype=np.float32)


@pytest.fixture
def env():
    environment = make_env(TASK, SimConfig(horizon=3))
    environment.reset(KEY)
    yield environment
    environment.close()


def test_every_task_has_one_instruction():
    from metaworld.env_dict import ENV_CLS_MAP

    sentences = instructions()
    assert set(sentences) == set(ENV_CLS_MAP)
    assert len(set(sentences.values())) == len(sentences) == 50
    assert all(sentence == sentence.strip().lower() and len(sentence) > 10 for sentence in sentences.values())


def test_listing_names_imports_no_simulator():
    heavy = {"mujoco", "metaworld", "gymnasium"}
    code = f"import sys, vlarge.sim; print(len(vlarge.sim.list_envs()), {heavy} & {{*sys.modules}})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [str(len(list_envs())), "set()"]
    assert sum(name.startswith("metaworld/") for name in list_envs()) == 50
    assert TASK in list_envs()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reach-v3", "metaworld/reach-v3"),
        ("metaworld/reech-v3", "metaworld/reach-v3"),
        ("metawrld/reach-v3", "metaworld"),
    ],
)
def test_unknown_name_suggests_the_nearest(name, expected):
    with pytest.raises(InputError, match=f"did you mean '{expected}'"):
        make_env(name)


def test_installed_packages_may_bring_simulators(monkeypatch):
    import importlib.metadata

    entry = importlib.metadata.EntryPoint("mine", "vlarge.sim.metaworld", "vlarge.sim")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == "vlarge.sim" else [])
    assert make_env("mine/reach-v3").spec.task == TASK
    assert "mine/reach-v3" in list_envs()


@pytest.mark.parametrize(
    "config",
    [
        SimConfig(cameras=("corner9",)),
        SimConfig(cameras=()),
        SimConfig(cameras=("close", "close")),
        SimConfig(render_quality="best"),
        SimConfig(image_size=0),
        SimConfig(horizon=-1),
    ],
)
def test_bad_settings_are_refused(config):
    with pytest.raises(InputError, match=r"camera|render_quality|image_size|horizon"):
        make_env(TASK, config)


def test_spec_is_complete_and_hashed(env):
    spec = env.spec
    assert (spec.task, spec.instruction, spec.metric) == (TASK, "reach the red target", "success_once")
    assert (spec.state_dim, spec.action_dim, spec.control_hz, spec.horizon) == (4, 4, 80.0, 3)
    assert spec.cameras == {"observation.images.corner2": (96, 96)}
    own = make_env(TASK, SimConfig(horizon=0))
    assert own.spec.horizon == own._task_class.max_path_length == 500
    assert make_env(TASK, SimConfig(horizon=3)).spec.hash() == spec.hash()
    assert make_env(TASK, SimConfig(horizon=3, render_quality="full")).spec.hash() != spec.hash()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_action_that_is_not_finite_is_refused(env, value):
    with pytest.raises(InputError, match="not finite"):
        env.step(np.array([0, 0, value, 0]))


def test_action_of_wrong_size_is_refused(env):
    with pytest.raises(InputError, match=r"\(5,\)"):
        env.step(np.zeros(5))


def test_actions_are_clipped(env):
    env.step(np.array([9.0, -9.0, 0.5, 1.0]))
    far = env._raw_observation
    env.reset(KEY)
    env.step(np.array([1.0, -1.0, 0.5, 1.0]))
    np.testing.assert_array_equal(env._raw_observation, far)


def test_episode_is_truncated_at_the_horizon_and_then_over(env):
    assert [env.step(NO_ACTION).truncated for _ in range(3)] == [False, False, True]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(NO_ACTION)
    env.reset(KEY)
    assert not env.step(NO_ACTION).truncated


def test_horizon_may_exceed_the_simulators_own():
    environment = make_env(TASK, SimConfig(horizon=501))
    environment.reset(KEY)
    assert [environment.step(NO_ACTION).truncated for _ in range(501)][-2:] == [False, True]


def test_use_before_reset_is_an_error():
    with pytest.raises(RuntimeError, match="reset"):
        make_env(TASK).observe()


@pytest.mark.parametrize(
    "name", ["drawer-close-v3", "button-press-topdown-v3", "reach-v3", "door-open-v3", "window-close-v3"]
)
def test_expert_succeeds_quietly(name):
    task = f"metaworld/{name}"
    environment = make_env(task, SimConfig(horizon=200))
    environment.reset(EpisodeKey(task, 1, 0))
    assert environment.success_at_reset is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            action = environment.expert()
            assert action.dtype == np.float32
            assert np.abs(action).max() <= 1
            if environment.step(action).success:
                return
    pytest.fail("the expert did not succeed")


def test_success_at_reset_is_seen_and_asking_changes_nothing(monkeypatch):
    environment = make_env(TASK)
    monkeypatch.setattr(
        environment._task_class,
        "evaluate_state",
        lambda self, obs, action: (setattr(self, "obj_init_pos", None), (0.0, {"success": 1.0}))[1],
    )
    environment.reset(KEY)
    assert environment.success_at_reset is True
    assert environment._simulation.obj_init_pos is not None


def test_observation_is_the_hand_and_named_pictures():
    environment = make_env(TASK, SimConfig(cameras=("close", "overhead"), image_size=32))
    environment.reset(KEY)
    observation = environment.observe()
    assert list(observation.images) == ["observation.images.close", "observation.images.overhead"]
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for image in observation.images.values())
    assert observation.state.dtype == np.float32
    np.testing.assert_allclose(observation.state[:3], environment._simulation.data.body("hand").xpos, rtol=1e-6)
    assert observation.task == environment.spec.instruction
    environment.close()
    assert set(VIEWS) >= {"corner", "corner2", "corner3", "topview", "gripperPOV", "close", "overhead"}
