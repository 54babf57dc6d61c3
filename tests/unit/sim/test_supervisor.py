"""Worker processes that die, hang, refuse, or never start."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from vlarge.contracts import InputError
from vlarge.sim.supervisor import Beat, Handler, Outcome, Supervisor


def setup(argument: str) -> Handler:
    if argument == "refuse":
        raise InputError("no such thing")
    if argument == "break":
        raise ZeroDivisionError("cannot start")
    if argument == "die":
        os._exit(3)
    if argument.startswith("die once"):
        marker = Path(argument.removeprefix("die once "))
        if not marker.exists():
            marker.touch()
            os._exit(3)
    return act


def act(job: tuple[str, Any], beat: Beat) -> object:
    what, seconds = job
    if what == "meet":
        Path(seconds, str(os.getpid())).touch()
        while len(list(Path(seconds).iterdir())) < 2:
            beat()
    if what == "beat":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            beat()
    if what == "sleep":
        time.sleep(seconds)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "raise":
        raise ZeroDivisionError("bad job")
    if what == "refuse":
        raise InputError("bad input")
    return os.getpid()


def outcomes(jobs: list[tuple[str, Any]], argument: str = "", num_workers: int = 1) -> list[Outcome]:
    jobs = list(jobs)
    with Supervisor(setup, argument, num_workers=num_workers, silence_s=1.0) as supervisor:
        return list(supervisor.run(lambda: jobs.pop(0) if jobs else None))


def test_dead_and_silent_workers_are_replaced_and_live_ones_kept():
    ends = outcomes([("ok", 0), ("die", 0), ("ok", 0), ("stop", 0), ("beat", 1.5), ("raise", 0), ("ok", 0)])
    assert [(end.job[0], end.lost) for end in ends] == [
        ("ok", False),
        ("die", True),
        ("ok", False),
        ("stop", True),
        ("beat", False),
        ("raise", False),
        ("ok", False),
    ]
    assert "exit code -9" in ends[1].error
    assert "silent for 1 s" in ends[3].error
    assert "ZeroDivisionError: bad job" in ends[5].error
    assert ends[6].result == ends[6].worker_pid == ends[4].worker_pid
    assert len({end.worker_pid for end in ends}) == 3


def test_workers_work_at_the_same_time(tmp_path):
    ends = outcomes([("meet", str(tmp_path))] * 2, num_workers=2)
    assert len({end.result for end in ends}) == 2


@pytest.mark.parametrize(
    ("argument", "job", "message"), [("refuse", "ok", "no such thing"), ("", "refuse", "bad input")]
)
def test_input_errors_reach_the_user_unchanged(argument, job, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        outcomes([(job, 0)], argument)


@pytest.mark.parametrize(
    ("argument", "message"), [("break", "ZeroDivisionError: cannot start"), ("die", "exit code 3")]
)
def test_workers_that_cannot_start_end_the_run(argument, message):
    with pytest.raises(RuntimeError, match=message):
        outcomes([("ok", 0)] * 5, argument)


def test_a_worker_that_dies_while_starting_costs_the_job_nothing(tmp_path):
    ends = outcomes([("ok", 0)], argument=f"die once {tmp_path / 'marker'}")
    assert [(end.lost, end.error) for end in ends] == [(False, "")]


def test_no_process_is_left_behind():
    with Supervisor(setup, "", num_workers=2, silence_s=5.0) as supervisor:
        jobs = [("ok", 0.0), ("ok", 0.0), ("sleep", 60.0), ("sleep", 60.0)]
        ends = supervisor.run(lambda: jobs.pop(0) if jobs else None)
        pids = {next(ends).worker_pid, next(ends).worker_pid}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_zero_workers_are_refused():
    with pytest.raises(InputError, match="at least one"):
        Supervisor(setup, "", num_workers=0, silence_s=1.0)
