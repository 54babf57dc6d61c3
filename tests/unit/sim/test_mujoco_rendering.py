"""Pictures: upright, showing what the state says, fast, and leaving nothing behind."""

import time

import numpy as np
import pytest

from vlarge.contracts import EpisodeKey
from vlarge.sim import make_env
from vlarge.sim.config import SimConfig
from vlarge.sim.mujoco_rendering import FreeView, MujocoRenderer, import_mujoco

TASK = "metaworld/drawer-close-v3"
SPHERE = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"


def picture(camera: str, task: str = TASK, **settings: object) -> np.ndarray:
    env = make_env(task, SimConfig(cameras=(camera,), **settings))  # type: ignore[arg-type]
    env.reset(EpisodeKey(task, 0, 0))
    image = env.observe().images[f"observation.images.{camera}"]
    env.close()
    return image.astype(int)


def centre(mask: np.ndarray) -> tuple[float, float]:
    assert mask.sum() > 20
    rows, columns = np.nonzero(mask)
    return rows.mean(), columns.mean()


@pytest.mark.parametrize("camera", ["close", "corner2"])
def test_pictures_are_upright_and_not_mirrored(camera):
    # Seen from the robot's right: its red arm reaches in from the top left, the green drawer stands to the right.
    image = picture(camera)
    red, green, blue = image[..., 0], image[..., 1], image[..., 2]
    arm_row, arm_column = centre((red > 80) & (green < 40) & (blue < 40))
    drawer_row, drawer_column = centre((green > red + 30) & (green > blue + 30))
    assert arm_row < drawer_row
    assert arm_column < drawer_column


@pytest.mark.parametrize("camera", ["topview", "overhead"])
def test_pictures_from_above_have_the_robot_at_the_bottom(camera):
    image = picture(camera)
    red, green, blue = image[..., 0], image[..., 1], image[..., 2]
    arm_row, _ = centre((red > 80) & (green < 40) & (blue < 40))
    drawer_row, _ = centre((green > red + 30) & (green > blue + 30))
    assert drawer_row < arm_row


def test_first_picture_shows_this_episodes_goal():
    task = "metaworld/reach-v3"
    env = make_env(task, SimConfig(cameras=("overhead",)))
    columns, goals = [], []
    for init_id in (0, 1, 2, 3):
        env.reset(EpisodeKey(task, init_id, 0))
        image = env.observe().images["observation.images.overhead"].astype(int)
        goal = (image[..., 0] > 200) & (image[..., 1] < 60) & (image[..., 2] < 60)
        columns.append(np.nonzero(goal)[1].mean())
        goals.append(env._simulation._target_pos[0])
    env.close()
    assert np.corrcoef(columns, goals)[0, 1] > 0.99


def test_fast_is_at_least_seven_times_faster_than_full():
    envs = [make_env(TASK, SimConfig(image_size=128, render_quality=quality)) for quality in ("fast", "full")]
    seconds: list[list[float]] = [[], []]
    for env in envs:
        env.reset(EpisodeKey(TASK, 0, 0))
        env.observe()
    for _ in range(6):
        for env, times in zip(envs, seconds, strict=True):
            start = time.perf_counter()
            env.observe()
            times.append(time.perf_counter() - start)
    for env in envs:
        env.close()
    assert min(seconds[1]) > 7 * min(seconds[0])


def test_two_open_renderers_do_not_disturb_each_other():
    alone = picture("close")
    first, second = (make_env(TASK, SimConfig(cameras=("close",), image_size=size)) for size in (96, 64))
    for env in (first, second):
        env.reset(EpisodeKey(TASK, 0, 0))
        env.observe()
    np.testing.assert_array_equal(first.observe().images["observation.images.close"], alone)
    second.close()
    np.testing.assert_array_equal(first.observe().images["observation.images.close"], alone)
    first.close()


@pytest.mark.long
def test_fifty_renderers_leave_no_memory_behind():
    model = import_mujoco().MjModel.from_xml_string(SPHERE)
    data = import_mujoco().MjData(model)
    import_mujoco().mj_forward(model, data)
    view = FreeView(lookat=(0, 0, 0), distance_m=3, azimuth=90, elevation=-30)
    memory_bytes = []
    for _ in range(50):
        renderer = MujocoRenderer(model, 96, "fast")
        assert renderer.render(model, data, view).max() > 0
        renderer.close()
        renderer.close()
        memory_bytes.append(resident_bytes())
    assert max(memory_bytes[25:]) - max(memory_bytes[:25]) < 30e6  # a context holds some 90 MB


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
