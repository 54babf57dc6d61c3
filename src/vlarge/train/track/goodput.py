"""Goodput: the share of a run's wall time that went into steps that count, over all its starts.

Every second that a process of the run was alive belongs to exactly one record, a step line or an event, and every
record says how many seconds it accounts for. So goodput is a sum, and it may be taken of the files or along the way:

    step line   step_s = data_wait_s + stalled_s + what counts, unless its gradients were not finite; other_s: between
                the record before it and its beginning
    event       seconds, of the class that `CLASS_OF` gives its name; lines without seconds are remarks

A resume drops the step lines after its checkpoint and notes their seconds as the event "redone".
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LOSSES = ("start", "data", "save", "restore", "redone", "stalled", "skipped", "other")
CLASS_OF = {
    "start": "start",  # until the run directory was opened
    "ready": "start",  # from there to the first step
    "save": "save",
    "restore": "restore",
    "redone": "redone",
    "end": "other",
}

NUM_REMEMBERED = 32  # steps that say what is usual; a lasting change is usual after half of them
NUM_NEEDED = 5  # the first steps compile and start threads: nothing is said before so many
STALLED = 4.0  # times the usual


@dataclass(frozen=True)
class Goodput:
    """steps_s: seconds in steps that count. lost_s: the other seconds by class. down_s: between starts, not counted."""

    steps_s: float
    lost_s: Mapping[str, float]
    down_s: float
    num_starts: int

    @property
    def wall_s(self) -> float:
        return self.steps_s + sum(self.lost_s.values())

    @property
    def ratio(self) -> float:
        """0 to 1; 0 where no time has passed yet."""
        return self.steps_s / self.wall_s if self.wall_s else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "goodput": self.ratio,
            "wall_s": self.wall_s,
            "steps_s": self.steps_s,
            "lost_s": dict(self.lost_s),
            "down_s": self.down_s,
            "num_starts": self.num_starts,
        }

    def __str__(self) -> str:
        starts = "1 start" if self.num_starts == 1 else f"{self.num_starts} starts"
        lost = ", ".join(f"{name} {value / self.wall_s:.1%}" for name, value in self.lost_s.items() if value)
        down = f"; {self.down_s:.0f} s between starts not counted" if self.down_s else ""
        return f"goodput {self.ratio:.1%} of {self.wall_s:.1f} s in {starts}; lost: {lost or 'nothing'}{down}"


@dataclass
class GoodputMeter:
    """The same sum, one record at a time."""

    _steps_s: float = 0.0
    _down_s: float = 0.0
    _num_starts: int = 0
    _lost_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0.0))

    def add_step(self, step: Mapping[str, Any]) -> None:
        """A line of steps.jsonl."""
        data_s, stalled_s = step.get("data_wait_s", 0.0), step.get("stalled_s", 0.0)
        worked_s = step.get("step_s", 0.0) - data_s - stalled_s
        if math.isfinite(step.get("grad_norm", 0.0)):
            self._steps_s += worked_s
        else:
            self._lost_s["skipped"] += worked_s
        self._lost_s["data"] += data_s
        self._lost_s["stalled"] += stalled_s
        self._lost_s["other"] += step.get("other_s", 0.0)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """A line of events.jsonl; a remark counts nothing."""
        name = event.get("event")
        if "seconds" not in event or name not in CLASS_OF:
            return
        self._lost_s[CLASS_OF[name]] += event["seconds"]
        self._num_starts += name == "start"
        self._down_s += event.get("down_s", 0.0)

    @property
    def value(self) -> Goodput:
        return Goodput(self._steps_s, dict(self._lost_s), self._down_s, self._num_starts)


def metered(steps: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]) -> GoodputMeter:
    """A meter that has seen the lines of a steps.jsonl and an events.jsonl."""
    meter = GoodputMeter()
    for step in steps:
        meter.add_step(step)
    for event in events:
        meter.add_event(event)
    return meter


def account(steps: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]) -> Goodput:
    """Goodput of a run directory, from the lines of its two files."""
    return metered(steps, events).value


def all_seconds(step: Mapping[str, Any]) -> float:
    """What a step line accounts for."""
    return float(step.get("step_s", 0.0) + step.get("other_s", 0.0))


class Pace:
    """The last steps of this start, by the time they worked."""

    def __init__(self) -> None:
        self._worked_s: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def stalled_s(self, worked_s: float) -> float:
        """Seconds beyond the usual, of a step that worked (did not wait for data) several times as long as usual."""
        usual_s = statistics.median(self._worked_s) if len(self._worked_s) >= NUM_NEEDED else worked_s
        self._worked_s.append(worked_s)
        return worked_s - usual_s if worked_s > STALLED * usual_s else 0.0
