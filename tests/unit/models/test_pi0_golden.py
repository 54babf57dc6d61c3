"""Our packed π0 and π0.5 against LeRobot 0.6.1's padded ones: velocity, loss, gradients, sampled actions."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pi0_reference import sizes_of, velocity_and_loss
from reference import close, packed
from safetensors.torch import load_file

from vlarge.contracts import InputError
from vlarge.models.pi0.convert import from_lerobot, naming, to_lerobot
from vlarge.models.pi0.model import Pi0


@pytest.fixture(scope="module", params=["pi05", "pi0"])
def golden(request: pytest.FixtureRequest, shared: Path) -> SimpleNamespace:
    torch.set_num_threads(1)
    path = shared / "oracle" / f"{request.param}_seed0.safetensors"
    tensors, c = load_file(path), json.loads(path.with_suffix(".json").read_text())["config"]
    model = Pi0(sizes_of(c, "in.state" in tensors))
    params = {key.removeprefix("param."): value for key, value in tensors.items() if key.startswith("param.")}
    model.load_state_dict(from_lerobot(params, model.state_dict(), model.config))
    return SimpleNamespace(model=model, params=params, tensors=tensors, c=c)


def test_velocity_and_loss(golden: SimpleNamespace) -> None:
    velocity, loss = velocity_and_loss(golden.model, golden.tensors, golden.c)
    close(velocity, golden.tensors["out.v_t"].flatten(0, 1), 5e-6)
    close(loss, golden.tensors["out.loss"], 5e-6)


def test_gradients(golden: SimpleNamespace) -> None:
    golden.model.zero_grad()
    velocity_and_loss(golden.model, golden.tensors, golden.c)[1].backward()
    checked = 0
    for name, parameter in golden.model.named_parameters():
        assert parameter.grad is not None, f"{name} is dead"
        theirs = golden.tensors.get("grad." + naming(golden.model.config).theirs(name))
        if theirs is None:  # attention-key biases: zero in exact arithmetic
            assert name.endswith(".k.bias")
            continue
        ours = parameter.grad
        close(ours.reshape(-1), theirs.reshape(-1)[: ours.numel()], 1e-5)
        checked += 1
    assert checked > 60


def test_sampled_actions(golden: SimpleNamespace) -> None:
    actions = golden.model.sample(packed(golden.tensors, golden.c), golden.tensors["in.sample_noise"].flatten(0, 1))
    close(actions, golden.tensors["out.sampled_actions"].flatten(0, 1), 1e-5)


def test_state_dict_goes_back_to_lerobots_keys(golden: SimpleNamespace) -> None:
    back = to_lerobot(golden.model.state_dict(), golden.model.config)
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in golden.params.items()}


def test_loading_is_strict(golden: SimpleNamespace) -> None:
    state = golden.model.state_dict()
    broken = dict(golden.params)
    broken["model.action_in_proj.weights"] = broken.pop("model.action_in_proj.weight")
    broken["model.action_out_proj.bias"] = torch.zeros(3)
    with pytest.raises(InputError) as error:
        from_lerobot(broken, state, golden.model.config)
    for part in ("missing ['model.action_in_proj.weight']", "unexpected ['model.action_in_proj.weights']", "(3,)"):
        assert part in str(error.value)
