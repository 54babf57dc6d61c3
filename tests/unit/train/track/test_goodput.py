"""Goodput is the same from the files and along the way, and every second of a run has exactly one class."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.train.track.goodput import LOSSES, Pace, account
from vlarge.train.track.jsonl import append_line, read_lines
from vlarge.train.track.timeline import Timeline

SECONDS = st.floats(0, 100, allow_nan=False)


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_hand_worked_example() -> None:
    steps = [
        {"step": 1, "step_s": 3.0, "data_wait_s": 1.0},
        {"step": 2, "step_s": 10.0, "data_wait_s": 0.5, "stalled_s": 7.5, "other_s": 0.25},
        {"step": 3, "step_s": 3.0, "data_wait_s": 1.0, "grad_norm": float("nan")},
    ]
    events = [
        {"event": "start", "seconds": 4.0, "down_s": 0.0},
        {"event": "a file could not be read"},
        {"event": "save", "seconds": 2.0},
        {"event": "redone", "seconds": 1.0},
        {"event": "start", "seconds": 1.5, "down_s": 60.0},
        {"event": "restore", "seconds": 0.5},
        {"event": "end", "seconds": 0.25},
    ]
    value = account(steps, events)
    assert value.steps_s == 4.0
    lost = {
        "start": 5.5,
        "data": 2.5,
        "skipped": 2.0,
        "save": 2.0,
        "restore": 0.5,
        "redone": 1.0,
        "stalled": 7.5,
        "other": 0.5,
    }
    assert value.lost_s == lost
    assert (value.wall_s, value.down_s, value.num_starts) == (25.5, 60.0, 2)
    assert value.ratio == 4.0 / 25.5
    assert "goodput 15.7% of 25.5 s in 2 starts; lost: start 21.6%" in str(value)
    assert str(value).endswith("; 60 s between starts not counted")
    assert account([], []).ratio == 0.0


def test_a_step_several_times_as_long_as_usual_has_stalled() -> None:
    pace = Pace()
    assert [pace.stalled_s(worked_s) for worked_s in (60.0, 1.0, 1.0, 1.0, 1.0)] == [0.0] * 5  # the first compiles
    assert pace.stalled_s(3.9) == 0.0
    assert pace.stalled_s(11.0) == 10.0
    assert [bool(pace.stalled_s(5.0)) for _ in range(40)].count(True) < 20  # a slower pace becomes the usual one


@dataclass
class History:
    """A run in a folder, on a clock of its own, that steps, saves, dies and resumes as told; and what is expected."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    step: int = 0
    saved: int = 0
    kept: list[tuple[int, float, float, float]] = field(default_factory=list)  # step, worked, waited, idle
    lost_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0.0))
    down_s: float = 0.0
    alive_s: float = 0.0
    began_s: float = 0.0
    is_ready: bool = False

    def begin(self, setup_s: float, restore_s: float) -> None:
        self.began_s, self.is_ready = self.clock.now_s, False
        self.timeline = Timeline(self.clock, self.clock)
        self.clock.now_s += setup_s
        with self.timeline.span("restore"):
            self.clock.now_s += restore_s
        self.timeline.open(self.folder, self.saved)
        self.lost_s["start"] += setup_s
        self.lost_s["restore"] += restore_s
        self.lost_s["redone"] += sum(sum(each[1:]) for each in self.kept if each[0] > self.saved)
        self.kept = [each for each in self.kept if each[0] <= self.saved]
        self.step = self.saved

    def take_step(self, idle_s: float, waited_s: float, worked_s: float) -> dict[str, Any]:
        self.clock.now_s += idle_s + waited_s + worked_s
        self.step += 1
        line = self.timeline.stepped({"step": self.step, "step_s": waited_s + worked_s, "data_wait_s": waited_s})
        append_line(self.folder / "steps.jsonl", line)
        self.lost_s["start"] += 0 if self.is_ready else idle_s
        self.kept.append((self.step, worked_s, waited_s, idle_s if self.is_ready else 0.0))
        self.is_ready = True
        return line

    def save(self, save_s: float) -> None:
        with self.timeline.span("save"):
            self.clock.now_s += save_s
        self.lost_s["save"] += save_s
        self.saved = self.step

    def die_and_resume(self, down_s: float, setup_s: float, restore_s: float) -> None:
        self.alive_s += self.clock.now_s - self.began_s
        self.clock.now_s += down_s
        self.down_s += down_s
        with (self.folder / "events.jsonl").open("a") as file:
            file.write('{"event": "sa')  # a kill cuts a line short
        self.begin(setup_s, restore_s)


EVENTS = st.one_of(
    st.tuples(st.just("take_step"), SECONDS, SECONDS, SECONDS),
    st.tuples(st.just("save"), SECONDS),
    st.tuples(st.just("die_and_resume"), SECONDS, SECONDS, SECONDS),
)


@settings(max_examples=60, deadline=None)
@given(SECONDS, st.lists(EVENTS, max_size=25))
def test_meter_files_and_clock_agree_over_any_history(setup_s: float, events: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder:
        history = History(Path(folder))
        history.begin(setup_s, 0.0)
        last: dict[str, Any] = {}
        for name, *seconds in events:
            last = getattr(history, name)(*seconds) or last
        live = history.timeline.close()
        read = account(read_lines(history.folder / "steps.jsonl"), read_lines(history.folder / "events.jsonl"))
        assert (live.steps_s, live.down_s) == pytest.approx((read.steps_s, read.down_s), abs=1e-6)
        assert live.lost_s == pytest.approx(read.lost_s, abs=1e-6)
        assert read.wall_s == pytest.approx(history.alive_s + history.clock.now_s - history.began_s, abs=1e-6)
        assert read.down_s == pytest.approx(history.down_s, abs=1e-6)
        assert read.num_starts == 1 + [name for name, *_ in events].count("die_and_resume")
        expected = history.lost_s | {"data": sum(waited for _, _, waited, _ in history.kept)}
        for name in ("start", "data", "save", "restore", "redone"):
            assert read.lost_s[name] == pytest.approx(expected[name], abs=1e-6), name
        worked_s = sum(worked for _, worked, _, _ in history.kept)
        assert read.steps_s + read.lost_s["stalled"] == pytest.approx(worked_s, abs=1e-6)
        assert json.loads((history.folder / "goodput.json").read_text())["goodput"] == live.ratio
        assert 0.0 <= last.get("goodput", 0.0) <= 1.0
