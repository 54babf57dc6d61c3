"""Fixtures for every test: the shared data beside the checkout, and its dataset generator."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own for the tests, so that none writes indexes into the real one."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared test data; a clone without it skips, CI must have it."""
    if not SHARED.is_dir():
        message = f"needs the shared test data in {SHARED}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return SHARED


@pytest.fixture(scope="session")
def make_datasets(shared: Path) -> ModuleType:
    """Generator of datasets whose pixels carry (camera, episode, frame)."""
    folder = str(shared / "data")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.find_spec("make_datasets")
    assert spec is not None
    return importlib.import_module("make_datasets")
