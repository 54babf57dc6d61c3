"""What every destination of a run's numbers has in common, and how a failing one is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlarge.recipe import Recipe

Note = Callable[[str], None]  # tells people on the spot and events.jsonl


@dataclass(frozen=True)
class Tracked:
    """The run that trackers write about, seen by one of its processes. done_steps: what it resumed from."""

    folder: Path
    recipe: Recipe
    done_steps: int = 0
    on_gpu: bool = False
    rank: int = 0
    local_rank: int = 0

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class Tracker(Protocol):
    """Takes one record per optimizer step; keys are stable (docs/tracking.md). Raises whatever goes wrong."""

    def log(self, record: Mapping[str, Any]) -> None: ...

    def close(self, *, failed: bool) -> None:
        """failed: the run ends by an error."""


class Trackers:
    """Those of one run. What fails is said once and gets no more records: training goes on."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._trackers: list[Tracker] = []

    def add(self, tracker: Tracker) -> None:
        self._trackers.append(tracker)

    def log(self, record: Mapping[str, Any]) -> None:
        for tracker in [*self._trackers]:
            try:
                tracker.log(record)
            except Exception as error:
                self._trackers.remove(tracker)
                self._say(f"{_name(tracker)} failed and is dropped, training goes on: {_reason(error)}")
                with suppress(Exception):  # it has been named already
                    tracker.close(failed=True)

    def close(self, *, failed: bool) -> None:
        for tracker in self._trackers:
            try:
                tracker.close(failed=failed)
            except Exception as error:
                self._say(f"{_name(tracker)} may lack its last steps: {_reason(error)}")
        self._trackers.clear()

    def _say(self, text: str) -> None:
        with suppress(OSError):  # the terminal may be gone, and be what failed
            self._note(text)


def _name(tracker: Tracker) -> str:
    return type(tracker).__name__


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0] or type(error).__name__


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """What of a step's record can be drawn as a curve: its numbers, without the step itself."""
    return {key: value for key, value in record.items() if key != "step" and isinstance(value, int | float)}
