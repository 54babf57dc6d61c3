"""The whole loop at its smallest, by the real command: every stage leaves what it promises."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from vlarge.evaluate.plan import load_plan
from vlarge.loop.demo import FIRST_RECORDED

SMALLEST = {
    "--evaluate.tasks": "metaworld/drawer-close-v3",
    "--evaluate.episodes": "2",
    "--record.episodes": "2",
    "--train.steps": "3",
    "--train.batch_size": "4",
    "--sim.horizon": "120",
    "--sim.image_size": "48",
    "--model.image_size": "48",
}


def demo(run: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [word for pair in SMALLEST.items() for word in pair]
    command = [sys.executable, "-m", "vlarge", "demo", "--seed", "107", "--run.dir", str(run), *settings, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_loop_at_its_smallest(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    done = demo(run, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((run / "demo.json").read_text())
    assert result["seed"] == 107
    assert result["num_episodes"] == 2
    assert result["verdict"] in ("promote", "reject", "undecided")
    assert result.keys() == {
        *(
            "seed",
            "steps",
            "planned_steps",
            "success_rate",
            "num_success",
            "num_episodes",
            "wilson95",
            "verdict",
            "loop_s",
            "stages_s",
        )
    }
    assert result["stages_s"].keys() == {"record", "train", "baseline", "evaluate", "gate", "report"}
    page = (run / "report.html").read_text()
    assert "drawer-close-v3" in page
    assert "data:video/mp4" in page
    judged = load_plan(run / "eval" / "00000003" / "plan.json").keys
    assert all(key.init_id < FIRST_RECORDED and key.seed == 107 for key in judged)
    assert judged == load_plan(run / "eval" / "00000000" / "plan.json").keys

    again = demo(run)
    assert again.returncode == 2
    assert again.stderr.strip().endswith("is not empty: remove it, or choose another --run.dir")


def test_interrupting_the_training_ends_the_loop(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = [word for pair in (SMALLEST | {"--train.steps": "100000"}).items() for word in pair]
    command = [sys.executable, "-m", "vlarge", "demo", "--seed", "107", "--run.dir", str(run), *settings]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        steps = run / "steps.jsonl"
        while not (steps.exists() and steps.read_text()):  # a line: the training is under way
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert not (run / "eval").exists()
