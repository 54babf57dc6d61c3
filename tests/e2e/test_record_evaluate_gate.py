"""The real command line, from demonstrations to a verdict, on one small task."""

import json
import subprocess
import sys
from pathlib import Path

TASK = "metaworld/drawer-close-v3"


def vlarge(*argv: str | Path, code: int = 0) -> str:
    command = [Path(sys.executable).parent / "vlarge", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_record_then_look(tmp_path: Path) -> None:
    out = tmp_path / "demos"
    record = (
        "data",
        "record",
        "--env",
        TASK,
        "--episodes",
        "1",
        "--workers",
        "1",
        "--sim.image-size",
        "32",
        "--out",
        out,
    )
    recorded = json.loads(vlarge(*record, "--json"))
    info = json.loads(vlarge("data", "info", out, "--json"))
    assert (info["format"], info["num_episodes"], info["num_frames"]) == ("lerobot-v3.0", 1, recorded["num_frames"])
    assert json.loads(vlarge("data", "check", out, "--json"))["ok"]
    assert not vlarge(*record, code=2)


def test_evaluate_twice_then_gate(tmp_path: Path) -> None:
    small = ("--sim.image-size", "32", "--sim.horizon", "5", "--videos", "0", "--workers", "1")
    first, second = tmp_path / "first", tmp_path / "second"
    vlarge("eval", "zero", "--env", TASK, "--episodes", "2", *small, "--out", first)
    summary = json.loads(
        vlarge("eval", "expert", "--plan", first / "plan.json", "--workers", "1", "--out", second, "--json")
    )
    assert summary["num_failure"] + summary["num_success"] == 2
    assert len((second / "episodes.jsonl").read_text().splitlines()) == 2
    answer = json.loads(vlarge("gate", first, second, "--json", code=3))
    assert (answer["verdict"], answer["num_pairs"]) == ("undecided", 2)


def test_an_evaluation_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for argv in (("zero",), ("zero", "--env", "metaworld/drawer-clse-v3"), ("no/such/policy", "--env", TASK)):
        assert not vlarge("eval", *argv, "--out", out, code=2)
    assert not out.exists()
