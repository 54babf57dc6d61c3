"""Metadata text of a dataset, read with suspicion: JSON with positions in its errors, numbers, tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from vlarge.data.check import FaultLog, Refused, Unreachable
from vlarge.data.fetch import Store

MAX_JSON_BYTES = 64 << 20
MAX_JSONL_BYTES = 2 << 30
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(store: Store, file: str) -> Any:
    """The content of a JSON file. Raises Refused with the position of what is wrong."""
    return _parse(store, file, _read_text(store, file, MAX_JSON_BYTES), "")


def read_jsonl(store: Store, file: str) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each line of a JSON-lines file. Raises Refused with the line of what is wrong."""
    for number, line in enumerate(_read_text(store, file, MAX_JSONL_BYTES).split("\n"), 1):
        if line.strip():
            yield number, _parse(store, file, line, f"line {number}: ")


def whole_number(value: object) -> int | None:
    """A whole number of 64 bits, also one that pandas has made a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63 or value % 1:
        return None
    return int(value)


def check_length(value: object, index: int, where: str, log: FaultLog) -> int:
    """An episode's length; 0, and the episode left out, when the value cannot be one."""
    length = whole_number(value)
    if length is None or length < 0:
        log.leave_out(index, "bad_length", where, f"its length is {value!r:.40}, not a number of frames")
        return 0
    return length


def task_texts(file: str, rows: Iterable[tuple[object, object]], log: FaultLog) -> dict[int, str]:
    """task_index -> text of rows (task_index, text). What is not such a row, or contradicts another, is reported."""
    texts: dict[int, str] = {}
    unclear: set[int] = set()
    num_bad = 0
    for value, text in rows:
        number = whole_number(value)
        if number is None or not isinstance(text, str):
            num_bad += 1
        elif texts.setdefault(number, text) != text:
            unclear.add(number)
    if num_bad:
        log.report("bad_tasks", file, f"{num_bad} of its rows do not give a task_index and a text")
    if unclear:
        log.report("duplicate_task", file, f"task_index {min(unclear)} has two texts, so it has none")
    clear = {number: text for number, text in texts.items() if number not in unclear}
    empty = [number for number, text in clear.items() if not text.strip()]
    if empty:
        log.report("no_instruction", file, f"task_index {min(empty)} has an empty text; it is kept")
    return clear


def _read_text(store: Store, file: str, max_bytes: int) -> str:
    if not store.exists(file):
        raise Refused(store, "missing_metadata", file, "there is no such file; is the download complete?")
    if store.size(file) > max_bytes:
        raise Refused(store, "unreadable_metadata", file, f"{store.size(file)} bytes are too many for metadata")
    try:
        return store.read(file).decode("utf-8-sig")
    except (Unreachable, UnicodeDecodeError) as error:
        if isinstance(error, Unreachable) and store.local_path(file) is None:
            raise  # the store's fault, not the dataset's
        raise Refused(store, "unreadable_metadata", file, f"cannot be read as text ({error})") from error


def _parse(store: Store, file: str, text: str, where: str) -> Any:
    kind = "broken_jsonl_line" if where else "info_invalid_json"
    if not text.strip():
        raise Refused(store, kind, file, f"{where}nothing is written here; restore the file")
    try:
        value = json.loads(text)
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        position = f"{where}column {error.colno}" if where else f"line {error.lineno} column {error.colno}"
        raise Refused(store, kind, file, f"{position}: invalid JSON ({error.msg}); restore the file") from error
    except (ValueError, RecursionError) as error:  # digits without end, half of a character, lists in lists in lists
        raise Refused(store, kind, file, f"{where}JSON that cannot be used ({error}); restore the file") from error
