"""A recipe and a dataset become a plan: stages, their statistics, and the sizes that follow from them."""

import dataclasses
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.policy.files import write_policy
from vlarge.policy.lerobot import read_json
from vlarge.recipe import Recipe
from vlarge.train.feeding import open_data
from vlarge.train.fit import fit

TOP, WRIST = "observation.images.top", "observation.images.wrist"


def _with(recipe: Recipe, **data: object) -> Recipe:
    for key, value in data.items():
        recipe = recipes.replace(recipe, f"data.{key}", value)
    return recipe


def test_relative_actions_are_normalised_by_their_own_statistics(small: Recipe) -> None:
    recipe = _with(small, action_dims=["joint_2.pos", "0"], state_dims=["2", "0"], relative_actions=["0"])
    (dataset,) = open_data(recipe.data)
    made = fit(recipe, [dataset])
    (preparation,) = made.preparations
    assert made.sizes.max_action_dim == 2
    differences = []
    for episode in dataset.episodes:
        table = dataset.read_table(episode)
        for frame in range(episode.length):
            differences.append(table.action_TA[frame : frame + 4, 0] - table.state_TA[frame, 0])
            chunk, state = table.action_TA[frame : frame + 4], table.state_TA[frame]
            back = preparation.actions_inverse(preparation.actions(chunk, state), state)
            np.testing.assert_allclose(back[:, [0, 2]], chunk[:, [0, 2]], rtol=1e-5, atol=1e-5)
    flat = np.concatenate(differences)
    stats = preparation.action_normalizer.stats
    assert stats.count == len(flat)
    np.testing.assert_allclose([stats.min[1], stats.max[1]], [flat.min(), flat.max()], rtol=1e-6)


def test_training_from_a_policy_looks_through_the_cameras_of_this_dataset(small: Recipe, tmp_path: Path) -> None:
    recipe = _with(small, camera_slots=["base", "left_wrist"])
    datasets = open_data(recipe.data)
    first = fit(recipe, datasets)
    weights = first.build(0, torch.device("cpu")).state_dict()
    folder = tmp_path / "policy"
    write_policy(
        folder, sizes=first.sizes, weights=weights,
        preparations=first.by_embodiment, recipe={}, step=0,
    )  # fmt: skip
    assert {"base", "left_wrist"} < read_json(folder / "config.json")["input_features"].keys()
    again = recipes.replace(recipe, "model.init", str(folder))
    (swapped,) = fit(_with(again, camera_slots=["left_wrist", "base"]), datasets).preparations
    assert swapped.cameras == (WRIST, TOP)
    assert swapped.chain.camera(TOP) == "left_wrist"
    assert fit(_with(again, camera_slots=()), datasets).preparations[0].cameras == (TOP, WRIST)
    with pytest.raises(InputError, match="the model looks through left_wrist"):
        fit(_with(again, camera_slots=["base", "right_wrist"]), datasets)


@pytest.fixture(scope="session")
def other_path(tmp_path_factory: pytest.TempPathFactory, make_datasets: ModuleType) -> Path:
    """Another robot: one camera, five action dimensions, another rate."""
    path = tmp_path_factory.mktemp("data") / "other"
    spec = make_datasets.Spec("v2.1", episodes=3, length="8:12", cameras="front", fps=30, state_dim=3, action_dim=5)
    make_datasets.make(path, spec)
    return path


def mixed(small: Recipe, *parts: dict[str, object]) -> Recipe:
    return recipes.replace(recipes.replace(small, "data.path", ""), "data.mixture", list(parts))


def test_each_dataset_of_a_mixture_has_its_own_cameras_dimensions_and_statistics(
    small: Recipe, dataset_path: Path, other_path: Path
) -> None:
    recipe = mixed(small, {"path": str(dataset_path)}, {"path": str(other_path), "weight": 2.0})
    datasets = open_data(recipe.data)
    made = fit(recipe, datasets)
    assert made.embodiments == ("set", "other")
    assert [p.cameras for p in made.preparations] == [(TOP, WRIST), ("observation.images.front",)]
    assert made.sizes.max_action_dim == max(d.action_dim for d in datasets)
    for dataset, preparation in zip(datasets, made.preparations, strict=True):
        assert preparation.action_dim == dataset.action_dim
        rows = np.concatenate([dataset.read_table(e).action_TA for e in dataset.episodes])
        np.testing.assert_allclose(preparation.action_normalizer.stats.mean, rows.mean(0), rtol=1e-5)


def test_datasets_of_one_embodiment_share_statistics_and_the_order_of_cameras(
    small: Recipe, dataset_path: Path
) -> None:
    first = {
        "path": str(dataset_path),
        "exclude_episodes": [2, 3],
        "embodiment": "arm",
        "camera_slots": ["base", "hand"],
    }
    second = first | {"exclude_episodes": [0, 1], "camera_slots": ["hand", "base"]}
    recipe = mixed(small, first, second)
    made = fit(recipe, open_data(recipe.data))
    one, two = made.preparations
    assert [one.cameras, two.cameras] == [(TOP, WRIST), (WRIST, TOP)]  # base, then hand, in both
    assert one.action_normalizer.stats.count == two.action_normalizer.stats.count
    np.testing.assert_array_equal(one.action_normalizer.stats.mean, two.action_normalizer.stats.mean)
    (whole,) = open_data(small.data)
    rows = np.concatenate([whole.read_table(e).action_TA for e in whole.episodes])
    np.testing.assert_allclose(one.action_normalizer.stats.mean, rows.mean(0), rtol=1e-5)
    assert list(made.by_embodiment) == ["arm"]


def test_mistakes_in_a_mixture_are_named(small: Recipe, dataset_path: Path) -> None:
    part = {"path": str(dataset_path)}
    both = recipes.replace(small, "data.mixture", [part])
    with pytest.raises(
        InputError, match=r"data\.path describes one dataset: say it in the tables \[\[data.mixture\]\]"
    ):
        open_data(both.data)
    with pytest.raises(InputError, match=r"two datasets of data\.mixture are called 'set': give each its embodiment"):
        fit(mixed(small, part, part), open_data(mixed(small, part, part).data))
    with pytest.raises(InputError, match=r"a table \[\[data.mixture\]\] has no path"):
        open_data(mixed(small, {}).data)
    with pytest.raises(InputError, match=r"no dataset: give --data\.path"):
        open_data(recipes.replace(small, "data.path", "").data)


def test_a_policy_is_taken_to_a_new_embodiment(small: Recipe, other_path: Path, tmp_path: Path) -> None:
    recipe = recipes.replace(small, "model.max_action_dim", 8)
    first = fit(recipe, open_data(recipe.data))
    folder = tmp_path / "policy"
    write_policy(
        folder, sizes=first.sizes,
        weights=first.build(0, torch.device("cpu")).state_dict(), preparations=first.by_embodiment, recipe={}, step=0,
    )  # fmt: skip
    moved = recipes.replace(recipes.replace(recipe, "model.init", str(folder)), "data.path", str(other_path))
    with pytest.raises(InputError, match=r"model\.init looks through"):  # unnamed, it would be the policy's own robot
        fit(moved, open_data(moved.data))
    named = _with(moved, embodiment="new")
    made = fit(named, open_data(named.data))
    assert made.sizes == first.sizes
    assert (made.embodiments, made.preparations[0].action_dim) == (("new",), 5)


def test_what_a_policy_was_trained_with_wins_over_the_dataset_and_the_recipe(small: Recipe, tmp_path: Path) -> None:
    """Of its own robot the statistics and all else; of a new one the tokenizer and the prompt."""
    first = fit(small, open_data(small.data))
    (trained,) = first.preparations
    trained = dataclasses.replace(trained, prompt="task")  # not the one that the model's family would choose
    folder = tmp_path / "policy"
    write_policy(
        folder, sizes=first.sizes,
        weights=first.build(0, torch.device("cpu")).state_dict(), preparations={"set": trained}, recipe={}, step=0,
    )  # fmt: skip
    changes = {"exclude_episodes": [0, 1], "normalization": "min_max", "tokenizer": "absent.json"}
    again = _with(recipes.replace(small, "model.init", str(folder)), **changes, max_text_tokens=77)
    datasets = open_data(again.data)
    (kept,) = fit(again, datasets).preparations
    assert kept.to_json() == trained.to_json()
    named = _with(again, embodiment="new")
    (new,) = fit(named, datasets).preparations
    assert new.action_normalizer.method == "min_max"
    own = np.concatenate([datasets[0].read_table(episode).action_TA for episode in datasets[0].episodes])
    np.testing.assert_array_equal(new.action_normalizer.stats.max, own.max(0))
    assert (kept.action_normalizer.stats.max != new.action_normalizer.stats.max).any()
    assert (new.prompt, new.max_text_tokens, new.tokenizer.to_json()) == ("task", 512, {"kind": "bytes"})


def test_of_a_policy_to_start_from_only_the_horizon_can_be_changed(small: Recipe, tmp_path: Path) -> None:
    datasets = open_data(small.data)
    first = fit(small, datasets)
    weights = first.build(0, torch.device("cpu")).state_dict()
    write_policy(
        tmp_path / "policy", sizes=first.sizes, weights=weights, preparations=first.by_embodiment,
        recipe={}, step=0,
    )  # fmt: skip
    again = recipes.replace(small, "model.init", str(tmp_path / "policy"))
    longer = fit(recipes.replace(again, "model.action_horizon", 9), datasets)
    assert longer.sizes.action_horizon == longer.preparations[0].action_horizon == 9
    assert longer.build(0, torch.device("cpu")).config.action_horizon == 9
    assert fit(recipes.replace(again, "model.action_horizon", 0), datasets).sizes.action_horizon == 4
    for name, value, has in (("num_experts", 4, 0), ("image_size", 64, 32), ("max_action_dim", 32, 7)):
        with pytest.raises(
            InputError, match=f"model.{name} is {value}, and the weights of model.init are made for {has}"
        ):
            fit(recipes.replace(again, f"model.{name}", value), datasets)
    with pytest.raises(InputError, match=r"holds a 'pi05' policy, the recipe asks for 'pi0': set model\.name to pi05"):
        fit(recipes.replace(again, "model.name", "pi0"), datasets)


def test_rows_that_are_not_finite_enter_no_statistics(small: Recipe, dataset_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(dataset_path, broken)
    (file,) = broken.glob("data/*/*.parquet")
    table = pq.read_table(file)
    rows = table["action"].to_pylist()
    rows[3][0] = float("nan")
    column = table.schema.get_field_index("action")
    pq.write_table(table.set_column(column, table.schema.field(column), pa.array(rows, table["action"].type)), file)
    recipe = _with(small, path=str(broken), action_dims=["0", "1"])
    (preparation,) = fit(recipe, open_data(recipe.data)).preparations
    assert np.isfinite(preparation.action_normalizer.stats.mean).all()
    assert preparation.action_normalizer.stats.count == len(rows) - 1


def test_a_tokenizer_whose_image_mark_is_another_number_is_refused(small: Recipe, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    marks = ("[?]", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({m: k for k, m in enumerate(marks)}, unk_token="[?]"))
    words.add_special_tokens(list(marks[1:]))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(file))
    groot = recipes.replace(_with(small, tokenizer=str(file)), "model.name", "gr00t")
    with pytest.raises(
        InputError, match=r"another mark for images than the model replaces by them: set data\.tokenizer"
    ):
        fit(groot, open_data(groot.data))
    other = recipes.replace(groot, "model.name", "smolvla")
    assert fit(other, open_data(other.data)).preparations[0].tokenizer.vocab_size == 6
