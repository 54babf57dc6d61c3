"""The finetune recipe on untidy real datasets, by the real command line; its checkpoint acts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vlarge.contracts import Observation
from vlarge.policy.load import load_policy

RECIPE = str(Path(__file__).parents[2] / "recipes" / "finetune.toml")
SMALL = ["--train.batch_size", "4", "--train.num_threads", "1", "--model.image_size", "64", "--track.tensorboard=false"]


def vlarge(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vlarge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "camera", "said"),
    [
        ("gr00t_pick_n_place", "observation.images.ego_view", "5 oddities do no harm"),
        pytest.param(
            "g1_partial",
            "observation.images.cam_high",
            "97 episodes left out (partial_download): 0-9, 11-28, 30-81, 83-99",
            marks=pytest.mark.long,
        ),
    ],
)
def test_finetune_on_a_real_dataset(name: str, camera: str, said: str, shared: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", str(shared / "data" / name)
    done = vlarge("train", RECIPE, "--data.path", data, "--run.dir", str(run), "--train.steps", "32", *SMALL)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert np.mean(losses(run)[-8:]) < 0.8 * np.mean(losses(run)[:8])
    policy = load_policy(run)
    state = np.zeros(policy.preparation.state_normalizer.dim, np.float32)
    chunk = policy.infer(Observation({camera: np.zeros((480, 640, 3), np.uint8)}, state, "go"), (0,))
    assert chunk.shape == (16, policy.preparation.action_normalizer.dim)
    assert np.isfinite(chunk).all()


def start_training(run: Path, data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vlarge", "train", RECIPE, "--data.path", str(data), "--run.dir", str(run)]
    command += ["--train.save_every", "5", *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (run / "checkpoints" / "last").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def test_ctrl_c_saves_and_kill_loses_only_the_tail(shared: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", shared / "data" / "g1_partial"
    process = start_training(run, data)
    process.kill()
    process.communicate()
    lines_after_kill = len(losses(run))
    resume = [
        sys.executable,
        "-m",
        "vlarge",
        "train",
        RECIPE,
        "--data.path",
        str(data),
        "--run.dir",
        str(run),
        "--resume",
    ]
    pipe = subprocess.PIPE
    resumed = subprocess.Popen([*resume, *SMALL], stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(losses(run)) <= lines_after_kill + 1:
        assert resumed.poll() is None, resumed.stderr and resumed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(resumed.pid, signal.SIGINT)  # as a terminal does: its data service gets it too
    out, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, err
    assert "stopped at step" in out
    assert "Traceback" not in err
    steps = [json.loads(line)["step"] for line in (run / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    assert (run / "checkpoints" / "last").resolve().name == f"{steps[-1]:08d}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.path", "nowhere"], "nowhere"),
        (["--data.path", "."], "."),
        (["--train.stepz", "3"], "did you mean --train.steps?"),
        (["--data.path", "hf://nobody/nothing"], "nobody/nothing"),
        ([], "no dataset: give --data.path"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = vlarge("train", RECIPE, "--run.dir", str(run), *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert not run.exists()
