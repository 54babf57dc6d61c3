"""The step line of logs without a terminal, and the expression that reads it. Both are stable: tools read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TextIO

FIELDS = ("loss", "grad_norm", "lr", "samples_per_s", "step_s", "data_wait_s", "mfu", "goodput")
STEP_LINE = re.compile(
    r"^vlarge step=(?P<step>\d+) loss=(?P<loss>\S+) grad_norm=(?P<grad_norm>\S+) lr=(?P<lr>\S+)"
    r" samples_per_s=(?P<samples_per_s>\S+) step_s=(?P<step_s>\S+) data_wait_s=(?P<data_wait_s>\S+)"
    r" mfu=(?P<mfu>\S+) goodput=(?P<goodput>\S+)$",
    re.MULTILINE,
)


def step_line(record: Mapping[str, Any]) -> str:
    """Six digits of each number; "nan" for one that the record does not have."""
    numbers = " ".join(f"{name}={record.get(name, float('nan')):.6g}" for name in FIELDS)
    return f"vlarge step={record['step']} {numbers}"


def parse_step_lines(log: str) -> list[dict[str, float]]:
    """The step lines of a log, between whatever else is in it."""
    return [{name: float(text) for name, text in match.groupdict().items()} for match in STEP_LINE.finditer(log)]


class StepLineTracker:
    """Prints the line of every so many steps, and of the last one, whichever that turns out to be."""

    def __init__(self, file: TextIO, log_every: int) -> None:
        self._file, self._log_every = file, log_every
        self._unprinted: Mapping[str, Any] | None = None

    def log(self, record: Mapping[str, Any]) -> None:
        if record["step"] % self._log_every == 0:
            self._print(record)
        else:
            self._unprinted = record

    def close(self, *, failed: bool) -> None:
        if self._unprinted:
            self._print(self._unprinted)

    def _print(self, record: Mapping[str, Any]) -> None:
        self._unprinted = None
        print(step_line(record), file=self._file, flush=True)
