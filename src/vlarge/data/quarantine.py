"""Episodes to leave out: a list that `vlarge data check` writes and that training honours, for one dataset revision."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vlarge.contracts import InputError
from vlarge.data.check import Fault, one_line
from vlarge.data.manifest import Manifest

MAX_BYTES = 1 << 30


def episodes_in(faults: Iterable[Fault]) -> dict[int, str]:
    """Episode number -> "kind: detail", of those that are left out whole; for its first fault."""
    found: dict[int, str] = {}
    for fault in faults:
        if fault.action != "report" and fault.episode is not None and fault.frames is None:
            found.setdefault(fault.episode, f"{fault.kind}: {fault.detail}")
    return dict(sorted(found.items()))


def write_list(path: Path, revision: str, faults: Iterable[Fault]) -> int:
    """Write the list, whole or not at all, and return how many episodes it names. Raises InputError naming the file."""
    faults = list(faults)
    episodes = episodes_in(faults)
    content = {
        "revision": revision,
        "episodes": {str(number): reason for number, reason in episodes.items()},
        "faults": [asdict(fault) for fault in faults],
    }
    try:
        _replace(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(f"{path}: the quarantine list cannot be written ({error.strerror})") from error
    return len(episodes)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@dataclass(frozen=True)
class QuarantineList:
    """What a list says. episodes: number -> reason, of the dataset as `revision` has it."""

    path: str
    revision: str
    episodes: Mapping[int, str]

    def require(self, revision: str) -> None:
        """Raise InputError when the list is of another dataset revision."""
        if self.revision != revision:
            raise InputError(
                f"{self.path}: this quarantine list is of dataset revision {self.revision!r:.40}, the dataset has "
                f"{revision!r}; write it again with `vlarge data check DATASET --quarantine FILE`"
            )


def read_list(path: str) -> QuarantineList:
    """Raises InputError when the file is no such list."""
    content = _read_json(os.path.expanduser(path))
    episodes = content.get("episodes") if isinstance(content, dict) else None
    if not isinstance(episodes, dict) or not isinstance(content.get("revision"), str):
        raise InputError(
            f"{path}: not a quarantine list (it needs a revision and episodes); write one with "
            "`vlarge data check DATASET --quarantine FILE`"
        )
    for number, reason in episodes.items():
        if not number.isascii() or not number.isdigit() or len(number) > 18 or not isinstance(reason, str):
            raise InputError(f"{path}: episode {number!r:.40} should be a number with a reason in words")
    return QuarantineList(path, content["revision"], {int(number): reason for number, reason in episodes.items()})


def _read_json(path: str) -> Any:
    try:
        if not os.path.isfile(path):
            raise InputError(f"{path}: no such quarantine list; data.quarantine names a file")
        if os.path.getsize(path) > MAX_BYTES:
            raise InputError(f"{path}: too large for a quarantine list")
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a quarantine list ({one_line(str(error))})") from error


def leave_out(manifest: Manifest, listed: Mapping[int, str]) -> Manifest:
    """The manifest without the listed episodes; each one that was usable is named as a fault."""
    faults = [
        Fault("quarantined", "quarantine", e.index, e.table_file, one_line(listed[e.index]))
        for e in manifest.episodes
        if e.index in listed
    ]
    kept = tuple(e for e in manifest.episodes if e.index not in listed)
    return replace(manifest, episodes=kept, faults=(*manifest.faults, *faults))
