"""A run to track and the records of its steps, without a trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlarge import recipe as recipes
from vlarge.recipe import Recipe
from vlarge.train.track.tracker import Tracked


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Tracked]:
    """A run directory that exists; settings by dotted name, "_" for ".": `make_run(track_wandb="offline")`."""

    def make(done_steps: int = 0, rank: int = 0, local_rank: int = 0, **settings: object) -> Tracked:
        recipe = recipes.replace(Recipe(), "track.tensorboard", False)
        for name, value in settings.items():
            recipe = recipes.replace(recipe, name.replace("_", ".", 1), value)
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        return Tracked(folder, recipe, done_steps, rank=rank, local_rank=local_rank)

    return make


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    def make(step: int, **more: float) -> dict[str, Any]:
        whole = {
            "step": step, "loss": 1 / step, "grad_norm": 0.5, "lr": 1e-3, "samples_per_s": 64.0, "step_s": 0.5,
            "data_wait_s": 0.125, "mfu": 0.25, "real_token_fraction": 1.0, "memory_bytes": 1000, "memory_fraction": 0.9,
        }  # fmt: skip
        return whole | more

    return make
