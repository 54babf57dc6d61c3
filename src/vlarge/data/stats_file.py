"""Statistics of a dataset kept beside its index, so that the next run need not read every row again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlarge.data.accumulate import FeatureStats

if TYPE_CHECKING:
    from vlarge.data.index import Dataset

FILE_VERSION = 1


def path_of(dataset: Dataset, index_dir: str) -> Path:
    """The file of a dataset revision and the features read from it."""
    keys = json.dumps([dataset.state_key, dataset.action_key])
    name = f"stats-{dataset.revision}-{hashlib.sha256(keys.encode()).hexdigest()[:8]}.json"
    return Path(index_dir).expanduser() / name


def load(path: Path, dataset: Dataset) -> dict[str, FeatureStats] | None:
    """What `save` wrote; None if there is nothing, or anything about it is in doubt."""
    try:
        content = json.loads(path.read_bytes())
        subject, stats = content["subject"], content["stats"]
        if subject != _subject(dataset) or content["sha256"] != _digest(subject, stats):
            return None
        return {key: FeatureStats.from_json(feature) for key, feature in stats.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def save(path: Path, dataset: Dataset, found: Mapping[str, FeatureStats]) -> None:
    """Atomic. A folder that cannot be written is no fault: the next run computes them again."""
    subject, stats = _subject(dataset), {key: feature.to_json() for key, feature in found.items()}
    content = {"subject": subject, "stats": stats, "sha256": _digest(subject, stats)}
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            json.dump(content, file, allow_nan=False)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _subject(dataset: Dataset) -> dict[str, Any]:
    return {
        "version": FILE_VERSION,
        "revision": dataset.revision,
        "features": [dataset.state_key, dataset.action_key],
        "dims": [dataset.state_dim, dataset.action_dim],
        "num_frames": dataset.num_frames,
        "files": dataset.store.stamp(),  # the revision knows no more of a file than its size
    }


def _digest(subject: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([subject, stats], sort_keys=True).encode()).hexdigest()
