"""The main process's account of its time, and what earlier starts of the run noted of theirs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vlarge.train.run_dir import truncate_steps
from vlarge.train.track.goodput import Goodput, GoodputMeter, Pace, all_seconds, metered
from vlarge.train.track.jsonl import append_line, end_last_line, read_lines

Clock = Callable[[], float]


class Timeline:
    """Gives every second from its creation on to one record: a step line, or an event in events.jsonl.

    Until `open`, which only the main process calls, events are kept here.
    """

    def __init__(self, clock: Clock = time.perf_counter, now: Clock = time.time) -> None:
        self._clock, self._now = clock, now
        self._began_s = now()
        self._accounted_s = clock()  # every second before it has its record
        self._idle_s = 0.0  # of those, between records: the next one takes them
        self._step = 0
        self._is_ready = False
        self._pace = Pace()
        self._meter = GoodputMeter()
        self._folder: Path | None = None
        self._early: list[dict[str, Any]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """What the block takes is a "save" or a "restore"."""
        begin_s = self._clock()
        self._idle_s += begin_s - self._accounted_s
        try:
            yield
        finally:
            self._accounted_s = self._clock()
            self._note(name, self._accounted_s - begin_s)

    def open(self, folder: Path, step: int) -> None:
        """Go on from `step` in a run directory: step lines after it are dropped, and their time noted as redone."""
        events_path = folder / "events.jsonl"
        end_last_line(events_path)
        events = read_lines(events_path)
        kept, dropped = truncate_steps(folder / "steps.jsonl", step)
        last_s = max((line["time_s"] for line in (*kept, *dropped, *events) if "time_s" in line), default=self._began_s)
        self._folder, self._step, self._meter = folder, step, metered(kept, events)
        if dropped:
            self._note("redone", sum(map(all_seconds, dropped)), num_steps=len(dropped))
        self._note("start", self._take_idle(), down_s=max(0.0, self._began_s - last_s))
        for event in self._early:
            self._append(event | {"step": step})
        self._early.clear()

    def stepped(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a step that has just ended, with where its time and the time before it went.

        Of the main process also with the goodput of the run until now.
        """
        idle_s = max(0.0, self._take_idle() - record["step_s"])
        if not self._is_ready:
            self._is_ready = True
            self._note("ready", idle_s)
            idle_s = 0.0
        self._step = record["step"]
        stalled_s = self._pace.stalled_s(record["step_s"] - record.get("data_wait_s", 0.0))
        full = {**record, "stalled_s": stalled_s, "other_s": idle_s, "time_s": self._now()}
        self._meter.add_step(full)
        return full | ({"goodput": self._meter.value.ratio} if self._folder else {})

    def close(self) -> Goodput:
        """Note the end of this start, and write the run's goodput.json."""
        self._note("end" if self._is_ready else "ready", self._take_idle())
        value = self._meter.value
        if self._folder:
            with suppress(OSError):  # a full disk, which the checkpoint before it has named
                (self._folder / "goodput.json").write_text(json.dumps(value.as_json(), indent=2) + "\n")
        return value

    def _take_idle(self) -> float:
        """Seconds that no record has yet; the caller's record has them now."""
        now_s = self._clock()
        idle_s, self._idle_s = self._idle_s + now_s - self._accounted_s, 0.0
        self._accounted_s = now_s
        return idle_s

    def _note(self, name: str, seconds: float, **more: float) -> None:
        event = {"step": self._step, "rank": 0, "event": name, "seconds": seconds, "time_s": self._now(), **more}
        if self._folder:
            self._append(event)
        else:
            self._early.append(event)

    def _append(self, event: Mapping[str, Any]) -> None:
        self._meter.add_event(event)
        if self._folder:
            with suppress(OSError):  # the file's account loses a line, the run nothing
                append_line(self._folder / "events.jsonl", event)
