"""A dead process costs seconds: the group starts again and the run goes on by itself (law T4)."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from launching import finish, lines, torchrun, wait_until, workers_of

from vlarge import recipe as recipes
from vlarge.train.trainer import Trainer

TRAIN = ["-m", "vlarge", "train"]


def alone(settings: Path, data: Path, run: Path, steps: int, *, resume: bool = False) -> list[dict]:
    """The steps of the same run in this process alone."""
    options = {"data.path": str(data), "run.dir": str(run), "train.steps": steps, "train.save_every": 0}
    Trainer(recipes.load([settings], options), resume=resume).train()
    return lines(run / "steps.jsonl")


@pytest.mark.long
def test_a_run_that_was_killed_and_asked_to_stop_and_resumed_is_the_same_run(
    tmp_path: Path, settings: Path, faulty_data: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    steps = run / "steps.jsonl"
    options = f"{settings} --data.path {faulty_data} --run.dir {run} --train.steps 5000 --train.save_every 2"
    with torchrun(log, 2, *TRAIN, *options.split(), max_restarts="1") as process:
        wait_until(lambda: (run / "checkpoints/last").exists() and len(lines(steps)) % 2, log)
        first = workers_of(process)
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: not set(first) & set(workers_of(process)), log)
        reached = len(lines(steps))
        wait_until(lambda: len(lines(steps)) > reached, log)
        for pid in (process.pid, workers_of(process)[1]):  # what one process is told, all agree on
            os.kill(pid, signal.SIGUSR2)
        finish(process, log)
    stopped = lines(steps)[-1]["step"]
    assert (run / "checkpoints/last").resolve().name == f"{stopped:08d}"
    together = alone(settings, faulty_data, run, stopped + 2, resume=True)
    whole = alone(settings, faulty_data, tmp_path / "whole", stopped + 2)
    assert [step["step"] for step in together] == list(range(1, stopped + 3))
    for one, two in zip(whole, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.long
def test_ten_kills_in_a_row_change_nothing(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    """By torchrun, which repeats its command line; random ranks at random moments, start-up included."""
    rng, num_steps = random.Random(5), 24
    options = f"{settings} --data.path {faulty_data} --train.steps {num_steps} --train.save_every 2 --run.dir "
    with torchrun(tmp_path / "log", 4, *TRAIN, *options.split(), str(tmp_path / "whole")) as process:
        finish(process, tmp_path / "log")
    run, log = tmp_path / "run", tmp_path / "killed.log"
    with torchrun(log, 4, *TRAIN, *options.split(), str(run), max_restarts="10") as process:
        for number in range(10):
            lost_s = kill_one(process, run, log, rng, at_step=2 * number + 1)
            print(f"kill {number + 1}: a step was done again {lost_s:.1f} s later")
        finish(process, log)
    whole, killed = lines(tmp_path / "whole/steps.jsonl"), lines(run / "steps.jsonl")
    assert [step["step"] for step in killed] == list(range(1, num_steps + 1))
    assert killed[-1]["loss"] == pytest.approx(whole[-1]["loss"], abs=1e-6)
    assert "Traceback" not in log.read_text()  # one line from each that was left


def kill_one(process, run: Path, log: Path, rng: random.Random, at_step: int) -> float:
    """Kill a random process a random time after a step; seconds from there to the next step that is done."""
    steps = run / "steps.jsonl"
    wait_until(lambda: steps.exists() and (lines(steps) or [{"step": 0}])[-1]["step"] >= at_step, log)
    moment_s = time.monotonic() + rng.uniform(0, 0.5)
    wait_until(lambda: time.monotonic() > moment_s, log)
    workers = workers_of(process)
    os.kill(rng.choice(workers), signal.SIGKILL)
    start_s = time.monotonic()
    wait_until(lambda: not set(workers) & set(workers_of(process)), log)
    before = steps.stat().st_mtime_ns
    wait_until(lambda: steps.stat().st_mtime_ns != before and lines(steps), log)
    return time.monotonic() - start_s
