"""events.jsonl: what happened to a run and when, one line each, appended by any process and any thread of it."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from vlarge.train.health.pulse import Pulse


class Events:
    """Writes to the run directory. A line is {"step", "rank", "event": a sentence, …}; rank: whom it is about."""

    def __init__(self, run_dir: Path, rank: int, pulse: Pulse) -> None:
        self._path = run_dir / "events.jsonl"
        self._rank = rank
        self._pulse = pulse

    def tell(self, text: str) -> None:
        """Of this process, for people on the spot and for those who look later."""
        print(f"rank {self._rank}: {text}", file=sys.stderr)
        self.write(text)

    def write(self, text: str, *, rank: int | None = None, show: bool = False, **facts: Any) -> None:
        """Of any process. show: on the spot too. facts: what the sentence says, for machines."""
        if show:
            print(text, file=sys.stderr)
        about = self._rank if rank is None else rank
        line = json.dumps({"step": self._pulse.step, "rank": about, "event": text} | facts)
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # a full disk is found by a checkpoint
            file.write(line + "\n")
