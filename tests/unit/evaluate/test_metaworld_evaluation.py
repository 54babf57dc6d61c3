"""The evaluation's promises on the real simulator: same bytes for 1 and 2 workers, a killed worker, readable films."""

import json
import os
import signal
from pathlib import Path

import av

from vlarge.evaluate.config import EvaluateConfig
from vlarge.evaluate.journal import Attempt
from vlarge.evaluate.plan import make_plan
from vlarge.evaluate.run import run
from vlarge.sim.config import SimConfig

TASKS = ("metaworld/drawer-close-v3", "metaworld/reach-v3")


def test_experts_give_the_same_bytes_whatever_happens_to_the_workers(tmp_path):
    plan = make_plan(EvaluateConfig(tasks=TASKS, episodes=2), SimConfig(image_size=32, cameras=("close",), horizon=100))
    killed = []

    def kill_once(attempt: Attempt) -> None:
        if not killed:
            killed.append(attempt.worker_pid)
            os.kill(attempt.worker_pid, signal.SIGKILL)

    one = run(plan, "expert", tmp_path / "one", EvaluateConfig(workers=1, videos=0))
    two = run(plan, "expert", tmp_path / "two", EvaluateConfig(workers=2, videos=1), on_attempt=kill_once)
    assert one == two
    for name in ("episodes.jsonl", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one["num_success"] == 4
    episodes = [json.loads(line) for line in (tmp_path / "two" / "episodes.jsonl").read_text().splitlines()]
    assert all(20 < episode["num_steps"] < 100 and episode["success_at_reset"] is False for episode in episodes)

    films = sorted(path.name for path in Path(tmp_path / "two" / "videos").iterdir())
    assert films == ["metaworld__drawer-close-v3-0000-0.mp4", "metaworld__reach-v3-0000-0.mp4"]
    with av.open(str(tmp_path / "two" / "videos" / films[0])) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == episodes[0]["num_steps"] // 4 + 1
    assert frames[0].std() > 20
    assert (frames[0] != frames[-1]).any()
