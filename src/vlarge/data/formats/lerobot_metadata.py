"""Metadata text of a LeRobot dataset, read with suspicion: JSON with positions in its errors, path templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from vlarge.data.check import Refused
from vlarge.data.fetch import Store

FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")


def read_json(store: Store, file: str) -> Any:
    """The content of a JSON file. Raises Refused with the position of what is wrong."""
    return _parse(store, file, _read_text(store, file), "")


def read_jsonl(store: Store, file: str) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each line of a JSON-lines file. Raises Refused with the line of what is wrong."""
    for number, line in enumerate(_read_text(store, file).splitlines(), 1):
        if line.strip():
            yield number, _parse(store, file, line, f"line {number}: ")


def _read_text(store: Store, file: str) -> str:
    if not store.exists(file):
        raise Refused(store, "missing_metadata", file, "the file does not exist; is the download complete?")
    try:
        return store.read(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(store, "unreadable_metadata", file, f"cannot be read as text ({error})") from error


def _parse(store: Store, file: str, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        kind = "broken_jsonl_line" if where else "info_invalid_json"
        position = f"{where}column {error.colno}" if where else f"line {error.lineno} column {error.colno}"
        raise Refused(store, kind, file, f"{position}: invalid JSON ({error.msg}); restore the file") from error


def fill(store: Store, name: str, template: str, fields: Mapping[str, int | str]) -> str:
    """A path template of info.json, filled field by field: `{field}` and `{field:03d}`, nothing else.

    Raises Refused for an unknown field and for a path that would leave the dataset.
    """

    def value(match: re.Match[str]) -> str:
        known = fields.get(match[1])
        if known is None or (isinstance(known, str) and match[2]):
            raise Refused(
                store, "bad_template", "meta/info.json", f"{name} has {match[0]}; known fields: {', '.join(fields)}"
            )
        return str(known).zfill(int(match[2] or 0))

    path = FIELD.sub(value, template)
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or any(c in path for c in "{}\\:\0"):
        raise Refused(store, "bad_template", "meta/info.json", f"{name} gives {path!r}, not a path inside the dataset")
    return path
