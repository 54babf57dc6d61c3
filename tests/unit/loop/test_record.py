"""Recording: the dataset depends on the keys only, holds the expert's own actions, and reads back as recorded."""

import hashlib
import json
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from vlarge.contracts import EpisodeKey, InputError
from vlarge.loop.record import RecordedEpisode, RecordSettings, play_expert, record
from vlarge.sim import make_env
from vlarge.sim.config import SimConfig

SIM = SimConfig(image_size=16, cameras=("front",))


def recorded(out: str, *tasks: str, sim: SimConfig = SIM, **settings: object) -> list[RecordedEpisode]:
    episodes: list[RecordedEpisode] = []
    settings = {"episodes_per_task": 4, "seed": 0, "workers": 1, **settings}
    record(tasks, sim, Path(out), on_episode=episodes.append, **settings)  # type: ignore[arg-type]
    return episodes


def digest(folder: str) -> dict[str, str]:
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def table(folder: str | Path) -> dict[str, list[object]]:
    (path,) = Path(folder).glob("data/*/*.parquet")
    columns: dict[str, list[object]] = pq.read_table(path).to_pydict()
    return columns


def test_bytes_do_not_depend_on_workers_or_crashes_and_failures_are_replaced(fake_sim):
    tasks = ("fake/moody", "fake/crash")
    episodes = recorded("one", *tasks)
    Path("fake_sim_faults").write_bytes(b"xx")
    recorded("two", *tasks, workers=2)
    assert digest("one") == digest("two")
    assert Path("fake_sim_faults").read_bytes() == b"", "the worker did crash"
    assert [(episode.key.task, episode.key.init_id) for episode in episodes] == [
        *(("fake/moody", init_id) for init_id in (0, 2, 3, 5)),
        *(("fake/crash", init_id) for init_id in range(4)),
    ]


def test_first_init_id_and_seed_choose_the_keys(fake_sim):
    keys = {episode.key for episode in recorded("out", "fake/line", first_init_id=100, seed=7)}
    assert keys == {EpisodeKey("fake/line", init_id, 7) for init_id in range(100, 104)}


@pytest.mark.parametrize("tail_steps", [0, 5])
def test_episodes_end_after_the_tail(fake_sim, tail_steps):
    for episode in recorded("out", "fake/line", tail_steps=tail_steps):
        env = make_env("fake/line", SIM)
        env.reset(episode.key)
        num_steps = 1
        while not env.step(env.expert()).success:  # type: ignore[attr-defined]
            num_steps += 1
        assert len(episode.actions) == len(episode.states) == num_steps + tail_steps


def test_noise_moves_the_robot_but_not_the_label(fake_sim):
    (calm,), (shaken,), (again,) = (
        recorded(out, "fake/line", episodes_per_task=1, action_noise=noise)
        for out, noise in (("calm", 0.0), ("shaken", 0.5), ("again", 0.5))
    )
    np.testing.assert_array_equal(calm.states[0], shaken.states[0])
    assert np.abs(np.diff(shaken.states[:5, 0]) - 0.1).max() > 1e-3
    for episode in (calm, shaken):
        np.testing.assert_array_equal(episode.actions, np.where(episode.states < 0.8, 1.0, 0.5))
    np.testing.assert_array_equal(shaken.states, again.states)
    assert digest("shaken") == digest("again")


def test_a_held_draw_of_noise_moves_several_steps_alike(fake_sim):
    (episode,) = recorded("out", "fake/line", episodes_per_task=1, action_noise=0.1, noise_hold_steps=3)
    pushes = np.diff(episode.states[:7, 0]) - 0.1 * episode.actions[:6, 0]
    np.testing.assert_allclose(pushes, np.repeat(pushes[::3], 3), atol=1e-6)
    assert abs(pushes[3] - pushes[0]) > 1e-4


@pytest.mark.parametrize(
    ("tasks", "settings", "message"),
    [
        (("fake/hopeless",), {}, "fails too often"),
        (("fake/line", "fake/line"), {}, "each once"),
        ((), {}, "at least one"),
        (("fake/lime",), {}, "did you mean 'fake/line'"),
        (("fake/line",), {"episodes_per_task": 0}, "at least one"),
        (("fake/line",), {"action_noise": float("nan")}, "noise"),
        (("fake/line",), {"noise_hold_steps": 0}, "held for 0 steps"),
        (("fake/line",), {"seed": -1}, "negative"),
        (("fake/line",), {"workers": 0}, "worker"),
    ],
)
def test_bad_requests_leave_nothing_behind(fake_sim, tasks, settings, message):
    with pytest.raises(InputError, match=message):
        recorded("out", *tasks, **settings)
    assert not Path("out").exists()


def test_existing_folder_is_not_touched(fake_sim):
    Path("out").mkdir()
    Path("out/mine").touch()
    with pytest.raises(InputError, match="out"):
        recorded("out", "fake/line")
    assert [path.name for path in Path("out").iterdir()] == ["mine"]


def test_metaworld_episodes_read_back(tmp_path):
    sim = SimConfig(image_size=64, cameras=("close", "overhead"), horizon=120)
    tasks = ("metaworld/handle-press-v3", "metaworld/reach-v3")
    out = tmp_path / "dataset"
    record(tasks, sim, out, episodes_per_task=1, seed=3, first_init_id=50, workers=1, tail_steps=2, action_noise=0.1)

    info = json.loads((out / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_episodes"]) == ("v3.0", 80, 2)
    columns = table(out)
    key = EpisodeKey(tasks[0], 50, 3)
    env = make_env(tasks[0], sim)
    expected = play_expert(env, key, RecordSettings(sim, 2, 0.1, 1), lambda: None)  # type: ignore[arg-type]
    env.close()
    assert expected is not None
    num_frames = len(expected.actions)
    assert columns["episode_index"].count(0) == num_frames
    np.testing.assert_array_equal(np.array(columns["action"][:num_frames]), expected.actions)
    np.testing.assert_array_equal(np.array(columns["observation.state"][:num_frames]), expected.states)
    assert pq.read_table(out / "meta/tasks.parquet").num_rows == 2
    for camera, frames in expected.images.items():
        (path,) = out.glob(f"videos/{camera}/*/*.mp4")
        with av.open(str(path)) as container:
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(decoded) == info["total_frames"]
        difference = np.abs(np.stack(decoded[:num_frames]).astype(float) - frames)
        assert difference.mean() < 6, "lossy, but these frames"
