"""Path templates of a dataset's metadata, filled field by field and never to a path outside the dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from vlarge.data.check import Refused
from vlarge.data.fetch import Store

FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024


def fill(store: Store, file: str, name: str, template: str, fields: Mapping[str, int | str]) -> str:
    """The template called `name` in `file`, filled in: `{field}` and `{field:03d}`, nothing else.

    Raises Refused for an unknown field and for a path that would leave the dataset.
    """

    def refused(detail: str) -> Refused:
        return Refused(store, "bad_template", file, f"{name} {detail}")

    def value(match: re.Match[str]) -> str:
        known = fields.get(match[1])
        if known is None or (isinstance(known, str) and match[2]):
            raise refused(f"has {match[0]}; known fields: {', '.join(fields)}")
        return str(known).zfill(int(match[2] or 0))

    path = FIELD.sub(value, template)
    parts = PurePosixPath(path).parts
    longest = max((len(part.encode()) for part in parts), default=0)
    if longest > MAX_NAME_BYTES or len(path.encode()) > MAX_PATH_BYTES:
        raise refused(f"gives a path too long for a file: {path:.60}...")
    if not parts or path.startswith("/") or ".." in parts or any(c in path for c in "{}\\:\0"):
        raise refused(f"gives {path!r}, not a path inside the dataset")
    return path
