"""A dataset and a recipe for runs of several processes."""

from pathlib import Path
from types import ModuleType

import launching
import pytest


@pytest.fixture(scope="session")
def faulty_data(tmp_path_factory: pytest.TempPathFactory, make_datasets: ModuleType) -> Path:
    path = tmp_path_factory.mktemp("faulty") / "set"
    make_datasets.make(path, make_datasets.Spec("v3.0", episodes=6, length="20:30", codec="h264", size="48x64"))
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(launching.SETTINGS)
    return path
