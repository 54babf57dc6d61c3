"""Files of one JSON object a line, that a killed process may leave with half a last line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line of the file that is an object; none where there is no file."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue  # a kill cut it short
        if isinstance(content, dict):
            found.append(content)
    return found


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Opened for each line: processes of one run append to the same file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def end_last_line(path: Path) -> None:
    """Where a kill cut the last line short, end it, so that the next one stands alone."""
    if path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")


class JsonlTracker:
    """One JSON object per step, appended and flushed line by line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def log(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self, *, failed: bool) -> None:
        self._file.close()
