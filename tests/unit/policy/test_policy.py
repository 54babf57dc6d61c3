"""A checkpoint acts: raw chunks, keyed noise, strict loading, and a spec that it checks."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from vlarge.contracts import EnvSpec, InputError, Observation
from vlarge.data.stats import compute
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.models.config import ModelConfig
from vlarge.models.pi0.config import resolve
from vlarge.policy.chunks import ChunkQueue
from vlarge.policy.files import build_model, write_policy
from vlarge.policy.load import load_policy

CAMERA = "observation.images.front"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model_config = ModelConfig(image_size=32, action_horizon=6)
    sizes = resolve(model_config, vocab_size=ByteTokenizer.vocab_size, state_dim=4, action_dim=3)
    model = build_model(sizes, torch.device("cpu"))
    rng = np.random.default_rng(0)
    state, action = (compute([rng.normal(5, 2, (100, n))]) for n in (2, 3))
    preparation = Preparation(
        32, 6, (CAMERA,), ByteTokenizer(), Normalizer("quantile", state), Normalizer("mean_std", action), 200
    )
    folder = tmp_path_factory.mktemp("run") / "checkpoints" / "last" / "pretrained_model"
    write_policy(
        folder,
        sizes=sizes,
        weights=model.state_dict(),
        preparations={"arm": preparation},
        recipe={"train": {"steps": 1}},
        step=4,
    )
    return folder.parents[2]


def observation(value: int = 0) -> Observation:
    return Observation({CAMERA: np.full((48, 64, 3), value, np.uint8)}, np.array([4.0, 6.0], np.float32), "go on")


def spec(**changes: object) -> EnvSpec:
    values: dict = {
        "task": "sim/go",
        "instruction": "go on",
        "cameras": {CAMERA: (48, 64)},
        "state_names": ("a", "b"),
        "action_names": ("x", "y", "z"),
        "action_low": (-1.0,) * 3,
        "action_high": (1.0,) * 3,
        "action_convention": "any",
        "control_hz": 10.0,
        "horizon": 5,
        "metric": "success_once",
        "render_quality": "fast",
        "reset_mode": "new",
        "simulator": "none",
    }
    return EnvSpec(**(values | changes))


def test_a_chunk_depends_on_observation_and_noise_key_only(checkpoint: Path) -> None:
    policy = load_policy(checkpoint)
    chunk = policy.infer(observation(), (1, 2))
    assert chunk.shape == (6, 3)
    assert chunk.dtype == np.float32
    np.testing.assert_array_equal(chunk, policy.infer(observation(), (1, 2)))
    np.testing.assert_array_equal(chunk, load_policy(checkpoint).infer(observation(), (1, 2)))
    assert not np.array_equal(chunk, policy.infer(observation(), (1, 3)))


def test_actions_come_back_in_raw_units(checkpoint: Path) -> None:
    """Untrained velocities are small beside the noise: raw chunks spread like the statistics, mean 5, deviation 2."""
    policy = load_policy(checkpoint)
    values = np.stack([policy.infer(observation(), (i,)) for i in range(30)])
    assert values.mean() == pytest.approx(5.0, abs=1.0)
    assert values.std() == pytest.approx(2.0, abs=1.2)


def test_relative_actions_start_from_the_state_that_was_seen(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    file = copy / "checkpoints" / "last" / "pretrained_model" / "vlarge.json"
    stored = json.loads(file.read_text())
    stored["embodiments"]["arm"]["stages"] = [{"stage": "relative", "dims": [0, 1]}]
    file.write_text(json.dumps(stored))
    relative, absolute = (load_policy(path).infer(observation(), (0,)) for path in (copy, checkpoint))
    np.testing.assert_allclose(relative - absolute, np.tile([4.0, 6.0, 0.0], (6, 1)), rtol=1e-5)


def test_a_run_a_checkpoint_and_a_policy_folder_are_the_same_policy(checkpoint: Path) -> None:
    places = [checkpoint, checkpoint / "checkpoints" / "last", checkpoint / "checkpoints/last/pretrained_model"]
    assert {load_policy(place).name for place in places} == {"pi05 step 4"}


def test_an_environment_that_does_not_fit_is_refused(checkpoint: Path) -> None:
    policy = load_policy(checkpoint)
    policy.check(spec())
    with pytest.raises(InputError, match=r"looks through observation\.images\.front; sim/go has other"):
        policy.check(spec(cameras={"other": (48, 64)}))
    with pytest.raises(InputError, match="has 3 action dimensions, sim/go has 2"):
        policy.check(spec(action_names=("x", "y")))
    with pytest.raises(InputError, match="has 2 state dimensions, sim/go has 1"):
        policy.check(spec(state_names=("a",)))


def test_what_is_no_policy_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(InputError, match="no such policy"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no policy"):
        load_policy(tmp_path)
    (tmp_path / "config.json").write_text('{"type": "act"}')
    with pytest.raises(InputError, match="holds a 'act' policy: there is no model 'act'; known are"):
        load_policy(tmp_path)
    weights = checkpoint / "checkpoints/last/pretrained_model/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    try:
        with pytest.raises(InputError, match="cannot read"):
            load_policy(checkpoint)
    finally:
        weights.write_bytes(whole)


def test_the_queue_hands_out_some_of_a_chunk_or_all() -> None:
    queue = ChunkQueue(replan=2)
    queue.fill(np.arange(8.0).reshape(4, 2))
    assert queue.next().tolist() == [0.0, 1.0]
    assert queue.next().tolist() == [2.0, 3.0]
    assert queue.empty
    whole = ChunkQueue()
    whole.fill(np.zeros((3, 1)))
    for _ in range(3):
        whole.next()
    assert whole.empty


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("vlarge.json", {"model": None}, "names no model and sizes"),
        ("vlarge.json", {"embodiments": {}}, "names no embodiment"),
        ("vlarge.json", {"model": "pi0"}, "has sizes of 'pi05' and says 'pi0'"),
        ("vlarge.json", {"step": "4"}, "has step '4', which is no number"),
        ("vlarge.json", {"origin": ["a", "b"]}, "names no origin"),
        ("vlarge.json", {"origin": {"from": "a"}}, "names no origin"),
    ],
)
def test_damaged_metadata_is_named(checkpoint: Path, tmp_path: Path, file: str, change: dict, message: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    path = copy / "checkpoints" / "last" / "pretrained_model" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load_policy(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": "128"}, "width is '128'; it must be a whole number from 1"),
        ({"patch": 0}, "patch is 0; it must be a whole number from 1"),
        ({"depth": 2.0}, "depth is 2.0"),
        ({"kv_heads": None}, "kv_heads is None"),
        ({"max_state_dim": -1}, "max_state_dim is -1; it must be a whole number from 0"),
        ({"image_size": 64}, "prepares images of 32 and 6 actions for 'arm'; its model takes 64 and 6"),
        ({"action_horizon": 7}, "prepares images of 32 and 6 actions for 'arm'; its model takes 32 and 7"),
    ],
)
def test_damaged_sizes_are_named(checkpoint: Path, tmp_path: Path, change: dict, message: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    path = copy / "checkpoints" / "last" / "pretrained_model" / "vlarge.json"
    stored = json.loads(path.read_text())
    stored["sizes"] |= change
    path.write_text(json.dumps(stored))
    with pytest.raises(InputError, match=message):
        load_policy(copy)


@pytest.mark.parametrize("change", [{"cameras": 3}, {"tokenizer": None}])
def test_a_damaged_preparation_is_named(checkpoint: Path, tmp_path: Path, change: dict) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    path = copy / "checkpoints" / "last" / "pretrained_model" / "vlarge.json"
    stored = json.loads(path.read_text())
    stored["embodiments"]["arm"] |= change
    path.write_text(json.dumps(stored))
    with pytest.raises(InputError, match="preparation is damaged"):
        load_policy(copy)
