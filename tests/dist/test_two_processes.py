"""One process and two give the same losses and gradient norms within 1e-5 in fp32 (law T1), by the real command."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SETTINGS = """
[data]
clip_frames = 4
window_samples = 12
[model]
image_size = 32
action_horizon = 4
[train]
steps = 5
batch_size = 5
dtype = "fp32"
device = "cpu"
num_threads = 1
warmup_steps = 2
save_every = 0
suffixes_per_prefix = 2
[track]
tensorboard = false
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(SETTINGS)
    return path


def train(launcher: list[str], recipe: Path, data: Path, run: Path) -> list[dict]:
    command = [*launcher, "-m", "vlarge", "train", str(recipe), "--data.path", str(data), "--run.dir", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def test_two_processes_equal_one(tmp_path: Path, recipe: Path, make_datasets: ModuleType) -> None:
    data = tmp_path / "set"
    make_datasets.make(data, make_datasets.Spec("v3.0", episodes=4, length="10:20", codec="h264"))
    alone = train([sys.executable], recipe, data, tmp_path / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together = train(torchrun, recipe, data, tmp_path / "two")
    assert len(alone) == len(together) == 5
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
