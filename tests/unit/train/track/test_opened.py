"""Trackers of a run: what each receives, one that fails is dropped, and a run that cannot begin leaves no steps."""

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vlarge.contracts import InputError
from vlarge.train.track.jsonl import JsonlTracker, read_lines
from vlarge.train.track.opened import tracked
from vlarge.train.track.step_line import parse_step_lines
from vlarge.train.track.timeline import Timeline
from vlarge.train.track.tracker import Tracked, Trackers

MakeRun = Callable[..., Tracked]
MakeRecord = Callable[..., dict[str, Any]]


def log_steps(run: Tracked, record: MakeRecord, steps: range, note: Callable[[str], None] = print) -> None:
    with tracked(run, Timeline(), note) as log:
        for step in steps:
            log(record(step))


def test_every_step_is_a_line_with_its_goodput(make_run: MakeRun, record: MakeRecord) -> None:
    run = make_run()
    log_steps(run, record, range(1, 4))
    lines = read_lines(run.folder / "steps.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert {"goodput", "stalled_s", "other_s", "time_s"} <= lines[0].keys()
    assert json.loads((run.folder / "goodput.json").read_text())["num_starts"] == 1
    assert [line["event"] for line in read_lines(run.folder / "events.jsonl")] == ["start", "ready", "end"]


def test_a_log_without_a_terminal_has_some_steps_and_the_summary(
    make_run: MakeRun, record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(train_log_every=2)
    log_steps(run, record, range(1, 6))
    log = capsys.readouterr().err
    assert [line["step"] for line in parse_step_lines(log)] == [2, 4, 5]
    assert log.splitlines()[-1].startswith("goodput ")


def test_a_resumed_run_is_one_curve_in_tensorboard(make_run: MakeRun, record: MakeRecord) -> None:
    log_steps(make_run(track_tensorboard=True), record, range(1, 6))
    run = make_run(done_steps=3, track_tensorboard=True)
    with tracked(run, Timeline(), print) as log:
        for step in range(4, 8):
            log(record(step, loss=10.0))
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6, 7]
    assert [value for step, value in losses if step > 3] == [10.0] * 4
    assert [line["step"] for line in read_lines(run.folder / "steps.jsonl")] == [1, 2, 3, 4, 5, 6, 7]
    redone = [line for line in read_lines(run.folder / "events.jsonl") if line["event"] == "redone"]
    assert [line["num_steps"] for line in redone] == [2]


def test_what_fails_is_said_once_and_the_others_go_on(tmp_path: Path, record: MakeRecord) -> None:
    said: list[str] = []
    failing = Failing(after=1)
    trackers = Trackers(said.append)
    for tracker in (failing, JsonlTracker(tmp_path / "steps.jsonl")):
        trackers.add(tracker)
    for step in range(1, 6):
        trackers.log(record(step))
    trackers.close(failed=False)
    assert len(read_lines(tmp_path / "steps.jsonl")) == 5
    assert said == ["Failing failed and is dropped, training goes on: the server is gone"]
    assert failing.closed == [True]


def test_what_fails_at_the_end_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    trackers = Trackers(said.append)
    trackers.add(Failing(after=0, at_close=True))
    trackers.close(failed=False)
    assert said == ["Failing may lack its last steps: the server is gone"]


class Failing:
    def __init__(self, after: int, *, at_close: bool = False) -> None:
        self._left, self._at_close, self.closed = after, at_close, list[bool]()

    def log(self, record: Mapping[str, Any]) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("the server is gone")

    def close(self, *, failed: bool) -> None:
        self.closed.append(failed)
        if self._at_close:
            raise ConnectionError("the server is gone")


def test_a_taken_port_is_named_before_anything_begins(make_run: MakeRun, record: MakeRecord) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        run = make_run(track_prometheus_port=port)
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port}: another program has that port; set track\.prom"):
            log_steps(run, record, range(1, 2))
    assert not (run.folder / "steps.jsonl").exists()
    assert not (run.folder / "events.jsonl").exists()


def test_other_processes_write_nothing(make_run: MakeRun, record: MakeRecord) -> None:
    run = make_run(rank=1, track_tensorboard=True, track_wandb="offline")
    log_steps(run, record, range(1, 3))
    assert not [*run.folder.iterdir()]


def test_the_second_process_of_a_node_has_the_next_port(make_run: MakeRun, record: MakeRecord) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    run = make_run(rank=9, local_rank=1, track_prometheus_port=port - 1)
    with tracked(run, Timeline(), print) as log:
        log(record(1))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    assert 'vlarge_loss{run="mine",rank="9",' in text
    assert "vlarge_goodput_ratio" not in text  # only the main process knows


def test_a_run_that_ends_by_an_error_keeps_its_account(
    make_run: MakeRun, record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()

    def fail() -> None:
        with tracked(run, Timeline(), print) as log:
            log(record(1))
            raise InputError("the disk is full")

    with pytest.raises(InputError, match="the disk is full"):
        fail()
    assert [line["event"] for line in read_lines(run.folder / "events.jsonl")] == ["start", "ready", "end"]
    assert (run.folder / "goodput.json").exists()
    assert "; lost: " not in capsys.readouterr().err  # the error is what the run ends with


def test_an_unknown_way_to_use_wandb_is_named(make_run: MakeRun, record: MakeRecord) -> None:
    with pytest.raises(InputError, match=r"track\.wandb is 'on'; use 'offline', 'online', or '' for none"):
        log_steps(make_run(track_wandb="on"), record, range(1, 2))
