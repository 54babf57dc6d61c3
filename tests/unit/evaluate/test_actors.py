"""A policy of several embodiments acts as the one that fits the environment, or as the one that is named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vlarge.contracts import EnvSpec, InputError
from vlarge.data.stats import compute
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.evaluate.actors import fingerprint, load_actor
from vlarge.models.config import ModelConfig
from vlarge.models.pi0.config import resolve
from vlarge.policy.files import build_model, write_policy

FRONT = "observation.images.front"


def preparation(action_dim: int) -> Preparation:
    rows = np.random.default_rng(0).normal(size=(50, 5))
    state, action = (
        Normalizer("mean_std", compute([rows[:, :2]])),
        Normalizer("mean_std", compute([rows[:, :action_dim]])),
    )
    return Preparation(32, 4, (FRONT,), ByteTokenizer(), state, action, 200)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three robots, two of which have three action dimensions."""
    sizes = resolve(
        ModelConfig(image_size=32, action_horizon=4), vocab_size=ByteTokenizer.vocab_size, state_dim=7, action_dim=5
    )
    folder = tmp_path_factory.mktemp("runs") / "policy"
    write_policy(
        folder,
        sizes=sizes,
        weights=build_model(sizes, torch.device("cpu")).state_dict(),
        preparations={"arm": preparation(3), "hand": preparation(5), "crane": preparation(3)},
        recipe={},
        step=7,
    )
    return folder


@pytest.fixture
def env() -> Callable[[int], SimpleNamespace]:
    def make(action_dim: int) -> SimpleNamespace:
        spec = EnvSpec(
            "sim/go", "go on", {FRONT: (48, 64)}, ("a", "b"), tuple("uvwxy"[:action_dim]), -1.0, 1.0, "joint", 10.0, 50,
            "success_once", "fast", "full", "sim 1",
        )  # fmt: skip
        return SimpleNamespace(spec=spec)

    return make


def test_the_embodiment_that_fits_acts(policy: Path, env: Callable) -> None:
    actor = load_actor(str(policy))
    assert actor(env(5)).name == "pi05 step 7 for hand"
    with pytest.raises(InputError, match=rf"fits sim/go as arm, crane: say which, as {policy}#arm"):
        actor(env(3))
    with pytest.raises(InputError, match="has 3 action dimensions, sim/go has 4"):
        actor(env(4))


def test_the_embodiment_that_is_named_acts(policy: Path, env: Callable) -> None:
    assert load_actor(f"{policy}#crane")(env(3)).name == "pi05 step 7 for crane"
    assert fingerprint(f"{policy}#crane") == fingerprint(str(policy))
    with pytest.raises(InputError, match="does not know the embodiment 'leg'; it acts for arm, hand, crane"):
        load_actor(f"{policy}#leg")


def test_a_folder_may_have_the_sign_in_its_name(policy: Path, env: Callable, tmp_path: Path) -> None:
    odd = tmp_path / "run#2"
    shutil.copytree(policy, odd)
    assert load_actor(str(odd))(env(5)).name == "pi05 step 7 for hand"
    assert load_actor(f"{odd}#arm")(env(3)).name == "pi05 step 7 for arm"
