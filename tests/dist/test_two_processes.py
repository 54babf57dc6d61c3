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


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def train(launcher: list[str], recipe: Path, run: Path, *options: str) -> list[dict]:
    command = [*launcher, "-m", "vlarge", "train", str(recipe), "--run.dir", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_two_processes_equal_one(tmp_path: Path, recipe: Path, make_datasets: ModuleType) -> None:
    """Mixtures of experts too, whose balance is that of all processes' tokens."""
    data = tmp_path / "set"
    make_datasets.make(data, make_datasets.Spec("v3.0", episodes=4, length="10:20", codec="h264"))
    options = ["--data.path", str(data), "--model.num_experts", "4"]
    alone = train([sys.executable], recipe, tmp_path / "one", *options)
    together = train(TORCHRUN, recipe, tmp_path / "two", *options)
    assert_equal(alone, together)


@pytest.mark.long
def test_a_mixture_in_micro_batches_on_two_processes_equals_whole_batches_on_one(
    tmp_path: Path, recipe: Path, make_datasets: ModuleType
) -> None:
    """One of the robots is blind, so that some micro-batches have no use for the vision tower."""
    seeing, blind = tmp_path / "seeing", tmp_path / "blind"
    make_datasets.make(seeing, make_datasets.Spec("v3.0", episodes=4, length="10:20", codec="h264"))
    make_datasets.make(
        blind, make_datasets.Spec("v2.1", episodes=3, length="8:12", cameras="", state_dim=3, action_dim=5)
    )
    mixture = f'[{{path = "{seeing}"}}, {{path = "{blind}", weight = 2}}]'
    alone = train([sys.executable], recipe, tmp_path / "one", "--data.mixture", mixture)
    small = ["--train.micro_batch_tokens", "200"]
    together = train(TORCHRUN, recipe, tmp_path / "two", "--data.mixture", mixture, *small)
    assert_equal(alone, together)


def assert_equal(alone: list[dict], together: list[dict]) -> None:
    assert len(alone) == len(together) == 5
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
