"""How the demo shares out its time, and what it begins with."""

from pathlib import Path

import pytest

from vlarge.contracts import InputError
from vlarge.loop.demo import MIN_TRAINING_S, demo_recipe, fit_training, run_demo, shipped_recipe

FRAMES = 9_900


def training_s(record_s: float, **overrides: object) -> float:
    recipe = shipped_recipe({key.replace("__", "."): value for key, value in overrides.items()})
    return fit_training(recipe, record_s=record_s, num_frames=FRAMES).train.max_time_s


def test_training_gives_way_on_a_slow_machine_and_gets_no_more_than_its_recipe_on_a_fast_one():
    limit = shipped_recipe({}).train.max_time_s
    assert training_s(10.0) == limit
    assert training_s(100.0) > training_s(120.0) > MIN_TRAINING_S
    assert training_s(100.0) < limit
    assert training_s(1000.0) == MIN_TRAINING_S


def test_more_episodes_to_judge_leave_less_to_train():
    assert training_s(100.0, evaluate__episodes=20) < training_s(100.0)


def test_without_a_limit_training_keeps_its_own():
    assert training_s(1000.0, loop__max_time_s=0) == shipped_recipe({}).train.max_time_s
    assert training_s(1000.0, loop__max_time_s=0, train__max_time_s=0) == 0
    assert training_s(100.0, train__max_time_s=0) > MIN_TRAINING_S


def test_the_seed_decides_everything_random(tmp_path):
    recipe = demo_recipe(shipped_recipe({}), seed=7, run_dir=tmp_path)
    assert (recipe.run.seed, recipe.evaluate.seed, recipe.data.path) == (7, 7, str(tmp_path / "data"))


def test_a_file_is_no_run_directory():
    with pytest.raises(InputError, match="is a file; choose a folder"):
        run_demo(demo_recipe(shipped_recipe({}), seed=7, run_dir=Path(__file__)))
