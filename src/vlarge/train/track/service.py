"""What it takes to write to a service: its package, its address, and the run's id there, which resumes go on with."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from vlarge.contracts import InputError

REACHED_WITHIN_S = 5.0
FILE = "track.json"


def require(package: str, setting: str) -> ModuleType:
    """Import what a setting asks for. Raises InputError naming the extra where it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and broken
        raise InputError(
            f"{setting} needs the package {package}, which is not installed: pip install 'vlarge[track]', or leave"
            f" {setting} empty"
        ) from None


def check_reachable(url: str, setting: str) -> None:
    """Raise InputError if no HTTP server answers at `url`. Any answer will do: who may write is for it to say."""
    try:
        urlopen(Request(url, method="HEAD"), timeout=REACHED_WITHIN_S).close()
    except HTTPError as error:
        error.close()  # it answered
    except (URLError, OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise InputError(
            f"{setting}: nothing answers at {url} ({why}): start it, correct the address, or leave {setting} empty"
        ) from None


def known_id(folder: Path, service: str) -> str | None:
    """The id that this run has at a service, if it has been there before."""
    return _ids(folder).get(service)


def keep_id(folder: Path, service: str, run_id: str) -> None:
    (folder / FILE).write_text(json.dumps(_ids(folder) | {service: run_id}) + "\n")


def _ids(folder: Path) -> dict[str, str]:
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        ids = json.loads(path.read_text())
        return {str(service): str(run_id) for service, run_id in ids.items()}
    except (ValueError, AttributeError):
        raise InputError(f"{path} cannot be read: remove it, and services get a new run from here on") from None
