"""The slow bars, as the benchmarks measure them: `make test-long`. How long they take is the benchmarks' to say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


def benchmark(name: str, out: Path, *arguments: str) -> dict:
    script = ROOT / "benchmarks" / f"{name}.py"
    subprocess.run([sys.executable, str(script), "--out", str(out), *arguments], check=True)
    return json.loads((out / f"{name}.json").read_text())


def test_demo_succeeds_often_enough_on_the_seeds_that_were_not_tuned_on(tmp_path):
    result = benchmark("demo", tmp_path, "--seeds", "0", "1", "2")
    runs = result["runs"]
    assert [run["num_episodes"] for run in runs] == [50, 50, 50]
    assert result["pooled"]["num_success"] >= 0.65 * 150
    assert min(run["success_rate"] for run in runs) >= 0.55
    assert [run["verdict"] for run in runs] == ["promote"] * 3


def test_fine_tuning_beats_the_mean_action_on_an_episode_left_out(tmp_path, shared):
    data = shared / "data" / "gr00t_pick_n_place"
    result = benchmark("finetune", tmp_path, "--data", str(data), "--hold-out", "4", "--steps", "500")
    assert result["held_out_mae"] < result["mean_action_mae"]
