"""A recipe and a dataset become a plan: stages, their statistics, and the sizes that follow from them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.data.index import open_dataset
from vlarge.policy.files import read_json, write_policy
from vlarge.recipe import Recipe
from vlarge.train.setup import plan

TOP, WRIST = "observation.images.top", "observation.images.wrist"


def _with(recipe: Recipe, **data: object) -> Recipe:
    for key, value in data.items():
        recipe = recipes.replace(recipe, f"data.{key}", value)
    return recipe


def test_relative_actions_are_normalised_by_their_own_statistics(small: Recipe) -> None:
    recipe = _with(small, action_dims=["joint_2.pos", "0"], state_dims=["2", "0"], relative_actions=["0"])
    dataset = open_dataset(recipe.data)
    made = plan(recipe, dataset)
    assert made.sizes.max_action_dim == 2
    differences = []
    for episode in dataset.episodes:
        table = dataset.read_table(episode)
        for frame in range(episode.length):
            differences.append(table.action_TA[frame : frame + 4, 0] - table.state_TA[frame, 0])
            chunk, state = table.action_TA[frame : frame + 4], table.state_TA[frame]
            back = made.preparation.actions_inverse(made.preparation.actions(chunk, state), state)
            np.testing.assert_allclose(back[:, [0, 2]], chunk[:, [0, 2]], rtol=1e-5, atol=1e-5)
    flat = np.concatenate(differences)
    stats = made.preparation.action_normalizer.stats
    assert stats.count == len(flat)
    np.testing.assert_allclose([stats.min[1], stats.max[1]], [flat.min(), flat.max()], rtol=1e-6)


def test_training_from_a_policy_looks_through_the_cameras_of_this_dataset(small: Recipe, tmp_path: Path) -> None:
    recipe = _with(small, camera_slots=["base", "left_wrist"])
    dataset = open_dataset(recipe.data)
    first = plan(recipe, dataset)
    weights = first.build(0, torch.device("cpu")).state_dict()
    folder = tmp_path / "policy"
    write_policy(
        folder, model_name=first.model_name, sizes=first.sizes, weights=weights, preparation=first.preparation,
        recipe={}, step=0,
    )  # fmt: skip
    assert {"base", "left_wrist"} < read_json(folder / "config.json")["input_features"].keys()
    again = recipes.replace(recipe, "model.init", str(folder))
    swapped = plan(_with(again, camera_slots=["left_wrist", "base"]), dataset)
    assert swapped.preparation.cameras == (WRIST, TOP)
    assert swapped.preparation.chain.camera(TOP) == "left_wrist"
    assert plan(_with(again, camera_slots=()), dataset).preparation.cameras == (TOP, WRIST)
    with pytest.raises(InputError, match="the model looks through left_wrist"):
        plan(_with(again, camera_slots=["base", "right_wrist"]), dataset)
