"""A small generated dataset and a recipe that trains on it in seconds."""

from pathlib import Path
from types import ModuleType

import pytest

from vlarge import recipe as recipes
from vlarge.recipe import Recipe


@pytest.fixture(scope="session")
def dataset_path(tmp_path_factory: pytest.TempPathFactory, make_datasets: ModuleType) -> Path:
    path = tmp_path_factory.mktemp("data") / "set"
    make_datasets.make(path, make_datasets.Spec("v3.0", episodes=4, length="10:20", codec="h264"))
    return path


@pytest.fixture
def small(dataset_path: Path, tmp_path: Path) -> Recipe:
    """Eight fp32 steps of four samples at 32 pixels, on one thread."""
    recipe = Recipe()
    for key, value in {
        "run.dir": str(tmp_path / "run"),
        "data.path": str(dataset_path),
        "data.clip_frames": 4,
        "data.window_samples": 12,
        "data.workers": 0,
        "model.image_size": 32,
        "model.action_horizon": 4,
        "train.steps": 8,
        "train.batch_size": 4,
        "train.dtype": "fp32",
        "train.device": "cpu",
        "train.num_threads": 1,
        "train.warmup_steps": 2,
        "train.save_every": 3,
        "train.suffixes_per_prefix": 2,
        "track.tensorboard": False,
    }.items():
        recipe = recipes.replace(recipe, key, value)
    return recipe
