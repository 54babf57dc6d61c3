"""What this process is doing at this moment, and where the time of a step goes: one clock for both.

A section begins with two reads of attributes and one of the clock, so that it may stand in the innermost loop; another
thread may look at any time (`Pulse.beat`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import NamedTuple

DATA, FORWARD, BACKWARD, COMMUNICATE = "data", "forward", "backward", "communicate"
OPTIMIZER, SAVE, BETWEEN = "optimizer", "save", "between sections"
EXCHANGE = "exchange"  # with some of the processes, in the middle of a step: not all do it equally often
WAITING = (COMMUNICATE, EXCHANGE)
SECTIONS = (DATA, FORWARD, BACKWARD, COMMUNICATE, EXCHANGE, OPTIMIZER, SAVE)
KEYS = {name: f"{name}_s" for name in SECTIONS} | {DATA: "data_wait_s", EXCHANGE: "communicate_s"}  # of a record

NEW_S = 60.0  # a section that has never ended before is not late so soon: it may compile, or open files
UNUSUAL = 10  # times as long as usual
MEMORY = 20  # so many of a section's last times make what is usual

Detail = Callable[[], str]
_clock = time.perf_counter


class Place(NamedTuple):
    """Where a process is: the section, since when (of the clock), the how manieth one, and who knows more of it."""

    section: str
    since_s: float
    entry: int
    detail: Detail | None


@dataclass(frozen=True)
class Beat:
    """What a process says of itself about once a second.

    number: of the beat. section_s: seconds in the section so far; entry: the how manieth section. late: that is far
    longer than usual. rounds: collectives of all processes begun, of which each begins the same ones: who has begun the
    fewest is who the others wait for. ended_entry, ended_s: the last section that had been late. left: the last beat.
    """

    number: int
    step: int
    section: str
    section_s: float
    entry: int
    late: bool
    rounds: int
    detail: str = ""
    ended_entry: int = -1
    ended_s: float = 0.0
    left: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Beat:
        return Beat(**json.loads(text))


class Section:
    """A block of the training loop; inside another one it takes its time from it."""

    __slots__ = ("_detail", "_name", "_outer", "_pulse")

    def __init__(self, pulse: Pulse, name: str, detail: Detail | None) -> None:
        self._pulse, self._name, self._detail = pulse, name, detail

    def __enter__(self) -> None:
        self._outer = self._pulse.place
        self._pulse.move(self._name, self._detail)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pulse.back(self._outer)


class Pulse:
    """The sections of one process, each timed without those inside it. stall_s: no shorter one is ever late."""

    def __init__(self, stall_s: float = 8.0) -> None:
        self.stall_s = stall_s
        self.step = 0
        self.rounds = 0
        self.place = Place(BETWEEN, _clock(), 0, None)
        self._ended = (-1, 0.0)
        self._excused = -1
        self._usual_s: dict[str, float] = {}
        self._times: dict[str, int] = {}
        self.begin_step(0)

    def section(self, name: str, detail: Detail | None = None) -> Section:
        """Around what belongs to a section. detail: asked by another thread once the section takes long."""
        return Section(self, name, detail)

    def begin_step(self, step: int) -> None:
        """Time the sections from here on as those of this step."""
        self.step = step
        self._began_s = _clock()
        self._spent_s = dict.fromkeys((*SECTIONS, BETWEEN), 0.0)

    @property
    def step_s(self) -> float:
        """Seconds since the step began."""
        return _clock() - self._began_s

    def seconds(self) -> dict[str, float]:
        """{"step_s": …, "data_wait_s": …, …}: of this step, sections that took no time left out."""
        spent: dict[str, float] = {}
        for name in SECTIONS:
            if self._spent_s[name]:
                spent[KEYS[name]] = spent.get(KEYS[name], 0.0) + self._spent_s[name]
        return {"step_s": self.step_s} | spent

    def move(self, name: str, detail: Detail | None = None) -> None:
        """Go over to another section without a block of its own."""
        if name == COMMUNICATE:
            self.rounds += 1
        self._enter(name, detail)

    def back(self, place: Place) -> None:
        """Go back to the section that was left for another one."""
        self._enter(place.section, place.detail)

    def beat(self, number: int, *, left: bool = False) -> Beat:
        """What to say now. Any thread may ask."""
        place = self.place
        section_s = _clock() - place.since_s
        late = section_s > self._limit_s(place.section) and place.entry != self._excused
        detail = place.detail() if late and place.detail else ""
        return Beat(
            number, self.step, place.section, section_s, place.entry, late, self.rounds, detail, *self._ended, left
        )

    def excuse(self) -> None:
        """The present section is not late: the whole process was stopped. Any thread may say so."""
        self._excused = self.place.entry

    def _enter(self, name: str, detail: Detail | None) -> None:
        before, now_s = self.place, _clock()
        self.place = Place(name, now_s, before.entry + 1, detail)
        spent_s = now_s - before.since_s
        self._spent_s[before.section] += spent_s
        if spent_s > self.stall_s and spent_s > self._limit_s(before.section):
            self._ended = before.entry, spent_s
        self._learn(before.section, spent_s)

    def _learn(self, name: str, spent_s: float) -> None:
        # A mean that forgets; one stall must not become the rule, so each time counts as twice the mean at most.
        usual_s = self._usual_s.get(name, spent_s)
        times = self._times[name] = min(self._times.get(name, 0) + 1, MEMORY)
        self._usual_s[name] = usual_s + (min(spent_s, 2 * usual_s) - usual_s) / times

    def _limit_s(self, name: str) -> float:
        usual_s = self._usual_s.get(name)
        return max(self.stall_s, NEW_S if usual_s is None else UNUSUAL * usual_s)
