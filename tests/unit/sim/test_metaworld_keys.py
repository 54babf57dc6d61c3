"""Law E1 on the real simulator: a key decides the first observation and what follows from it, whatever ran before."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from vlarge.contracts import EpisodeKey, InputError
from vlarge.sim import make_env
from vlarge.sim.config import SimConfig
from vlarge.sim.metaworld.env import MetaworldEnv

# Moves its object by a body position, draws twice until two points are apart, opens a hinge at reset.
TASKS = ("metaworld/drawer-close-v3", "metaworld/reach-v3", "metaworld/door-open-v3")
CONFIG = SimConfig(image_size=64, cameras=("close",))
NUM_FOLLOWED_STEPS = 20


def digest(env: MetaworldEnv, key: EpisodeKey) -> str:
    """Hash of the first observation, then of what 20 expert steps lead to."""
    env.reset(key)
    parts = []
    for num_steps in (0, NUM_FOLLOWED_STEPS):
        for _ in range(num_steps):
            env.step(env.expert())
        observation = env.observe()
        parts += [observation.images["observation.images.close"], observation.state, env._raw_observation]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


@pytest.mark.parametrize("task", TASKS)
def test_key_decides_the_episode_whatever_ran_before(task):
    key = EpisodeKey(task, 7, 3)
    alone = make_env(task, CONFIG)
    expected = digest(alone, key)
    alone.close()

    env = make_env(task, CONFIG)
    assert digest(env, EpisodeKey(task, 8, 3)) != expected
    assert digest(env, EpisodeKey(task, 7, 4)) != expected
    assert digest(env, key) == expected, "after other episodes, stopped in the middle"
    rng = np.random.default_rng(0)
    for _ in range(150):
        env.step(rng.uniform(-1, 1, 4))
    assert digest(env, key) == expected, "after an episode that pushed things about"
    env.close()
    assert digest(env, key) == expected, "after the renderer was closed"
    env.close()


def test_key_decides_the_episode_in_another_process():
    task = TASKS[1]
    env = make_env(task, CONFIG)
    expected = digest(env, EpisodeKey(task, 7, 3))
    env.close()
    code = (
        f"import sys; sys.path.insert(0, {str(__file__.rpartition('/')[0])!r}); import test_metaworld_keys as t;"
        f"env = t.make_env({task!r}, t.CONFIG); print(t.digest(env, t.EpisodeKey({task!r}, 7, 3)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == [expected]
    assert finished.stderr == "", "an environment left open says nothing at interpreter exit"


def test_same_numbers_draw_differently_for_other_tasks():
    places = []
    for task in ("metaworld/door-open-v3", "metaworld/door-close-v3"):
        env = make_env(task, CONFIG)
        env.reset(EpisodeKey(task, 0, 0))
        space = env._simulation._random_reset_space
        places.append((env._simulation._last_rand_vec[0] - space.low[0]) / (space.high[0] - space.low[0]))
    assert abs(places[0] - places[1]) > 1e-3


@pytest.mark.parametrize("key", [EpisodeKey("metaworld/push-v3", 0, 0), EpisodeKey(TASKS[0], -1, 0)])
def test_foreign_or_negative_key_is_refused(key):
    env = make_env(TASKS[0], CONFIG)
    with pytest.raises(InputError):
        env.reset(key)
