"""SmolVLA and GR00T through the whole of training: their loss falls, another run starts from them, they act."""

import json
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from vlarge import recipe as recipes
from vlarge.contracts import Observation
from vlarge.data.service.plan import ALONE
from vlarge.models.gr00t.embodiment import EmbodimentLinear
from vlarge.policy.load import load_policy
from vlarge.recipe import Recipe
from vlarge.train.feeding import feed_of
from vlarge.train.trainer import Trainer


def of_the_first_robot(trainer: Trainer) -> list[Tensor]:
    """GR00T's weights for a robot that is not in the run."""
    layers = [module for module in trainer.model.modules() if isinstance(module, EmbodimentLinear)]
    return [parameter[0].detach().clone() for layer in layers for parameter in layer.parameters()]


@pytest.mark.parametrize(("name", "padding"), [("smolvla", "corner"), ("gr00t", "none")])
def test_a_run_learns_is_a_start_and_acts(small: Recipe, tmp_path: Path, name: str, padding: str) -> None:
    recipe = small
    for key, value in {"model.name": name, "train.steps": 24, "train.save_every": 0}.items():
        recipe = recipes.replace(recipe, key, value)
    trainer = Trainer(recipe)
    assert feed_of(trainer.recipe, trainer.plan, ALONE, trainer.degrees, 0).padding == padding
    absent = of_the_first_robot(trainer)
    last = trainer.train()
    assert all(before.equal(after) for before, after in zip(absent, of_the_first_robot(trainer), strict=True))
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])

    policy = load_policy(last)
    following = recipes.replace(recipes.replace(recipe, "run.dir", str(tmp_path / "next")), "model.init", str(last))
    started = Trainer(following)
    state = policy.model.state_dict()
    assert all(value.equal(state[name]) for name, value in started.model.state_dict().items())
    (preparation,) = started.plan.preparations
    assert preparation.to_json() == policy.preparation.to_json()

    images = {key: np.zeros((48, 64, 3), np.uint8) for key in preparation.cameras}
    seen = Observation(images, np.zeros(preparation.state_dim, np.float32), "go")
    actions = policy.infer(seen, (0,))
    assert actions.shape == (4, preparation.action_dim)
    assert np.isfinite(actions).all()
    assert not np.allclose(actions, policy.infer(seen, (1,)))
