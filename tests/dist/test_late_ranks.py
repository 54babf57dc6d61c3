"""Who keeps the others waiting is named long before a collective gives up, and the run goes on (law D7)."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from launching import finish, lines, torchrun, wait_until

from vlarge.train.health.stalls import SILENT

FAULTS = str(Path(__file__).parent / "faults.py")
OVER = "stall over"


def stalls(run: Path, section: str = "") -> list[dict]:
    events = [event for event in lines(run / "events.jsonl") if event.get("kind", "").startswith("stall")]
    return [event for event in events if section in ("", event["section"])]


def test_a_late_computation_a_stopped_process_and_a_late_loader_are_named(
    tmp_path: Path, settings: Path, faulty_data: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    named = [FAULTS, str(tmp_path), "compute:1:2,silent:0:4,data:1:6", "train", str(settings), "--run.dir", str(run)]
    options = f"--data.path {faulty_data} --train.steps 30 --health.stall_s 2 --health.beat_s 0.1"
    with torchrun(log, 2, *named, *options.split(), "--health.balance_every", "15") as process:
        wait_until(lambda: stalls(run, "forward"), log)
        (tmp_path / "compute.over").touch()
        wait_until(lambda: (tmp_path / "silent.begun").exists(), log)
        stopped = wait_until(lambda: [event for event in stalls(run, SILENT) if event["ranks"] == [0]], log)
        os.kill(int((tmp_path / "silent.begun").read_text()), signal.SIGCONT)
        (loader,) = wait_until(lambda: stalls(run, "data"), log)
        (tmp_path / "data.over").touch()
        finish(process, log)
    for section in ("forward", "data"):
        assert [(event["ranks"], event["kind"]) for event in stalls(run, section)] == [([1], "stall"), ([1], OVER)]
    assert re.search(r"decode episode \d+, .*\.mp4", loader["event"])
    assert (stopped[0]["kind"], stopped[0]["seconds"] >= 2) == ("stall", True)
    assert not stalls(run, "communicate")  # who only waits
    steps = lines(run / "steps.jsonl")
    assert [step["step"] for step in steps if "slowest_rank" in step] == [15, 30]
    assert all(step["communicate_s"] > 0 for step in steps)


@pytest.mark.long
def test_a_loader_that_stalls_for_twenty_seconds_is_named_within_twelve(
    tmp_path: Path, settings: Path, faulty_data: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    named = [FAULTS, str(tmp_path), "data:1:2", "train", str(settings), "--run.dir", str(run)]
    options = f"--data.path {faulty_data} --train.steps 40 --health.timeout_s 60"
    with torchrun(log, 4, *named, *options.split()) as process:
        wait_until(lambda: (tmp_path / "data.begun").exists(), log)
        start_s = wait_until(lambda: idle_since(run), log)
        wait_until(lambda: stalls(run), log)
        named_s = time.time() - start_s
        wait_until(lambda: time.time() > start_s + 20, log)
        (tmp_path / "data.over").touch()
        finish(process, log)
    before, after = stalls(run)
    print(f"named after {named_s:.1f} s: {before['event']}; {after['event']}")
    assert named_s < 12
    assert (before["ranks"], before["section"]) == ([1], "data")
    assert (after["ranks"], after["kind"]) == ([1], "stall over")
    assert 19 < after["seconds"] < 23
    assert lines(run / "steps.jsonl")[-1]["step"] == 40


@pytest.mark.long
@pytest.mark.parametrize("axis", ["dp_shard", "tp", "cp", "pp"])
def test_a_late_computation_is_named_whatever_its_neighbours_wait_for(
    tmp_path: Path, settings: Path, faulty_data: Path, axis: str
) -> None:
    """Others wait for its part of a weight, of a sum, of the tokens, or for the next micro-batch."""
    run, log = tmp_path / "run", tmp_path / "log"
    named = [FAULTS, str(tmp_path), "compute:1:2", "train", str(settings), "--run.dir", str(run)]
    options = f"--data.path {faulty_data} --train.steps 4 --health.stall_s 2 --health.beat_s 0.1 --parallel.{axis} 2"
    with torchrun(log, 2, *named, *options.split()) as process:
        wait_until(lambda: stalls(run), log)
        (tmp_path / "compute.over").touch()
        finish(process, log)
    assert [event["ranks"] for event in stalls(run, "forward")] == [[1], [1]]
    assert not stalls(run, "exchange") + stalls(run, "backward") + stalls(run, "communicate")


def idle_since(run: Path) -> float:
    """When the last step was written, if that was more than a second ago: what was ready has been used up."""
    written_s = (run / "steps.jsonl").stat().st_mtime
    return written_s if time.time() - written_s > 1 else 0.0
