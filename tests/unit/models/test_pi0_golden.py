"""Our packed π0 and π0.5 against LeRobot 0.6.1's padded ones: velocity, loss, gradients, sampled actions."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pi0_reference import sizes_of, velocity_and_loss
from reference import close, gradients_are_theirs, loading_is_strict, of_kind, packed, read_golden

from vlarge.models.pi0.convert import from_lerobot, naming, to_lerobot
from vlarge.models.pi0.model import Pi0


@pytest.fixture(scope="module", params=["pi05", "pi0"])
def golden(request: pytest.FixtureRequest, shared: Path) -> SimpleNamespace:
    torch.set_num_threads(1)
    path = shared / "oracle" / f"{request.param}_seed0.safetensors"
    tensors, params, meta = read_golden(path)
    c = meta["config"]
    model = Pi0(sizes_of(c, "in.state" in tensors))
    model.load_state_dict(from_lerobot(params, model.state_dict(), model.config))
    return SimpleNamespace(model=model, params=params, tensors=tensors, c=c)


def test_velocity_and_loss(golden: SimpleNamespace) -> None:
    velocity, loss = velocity_and_loss(golden.model, golden.tensors, golden.c)
    close(velocity, golden.tensors["out.v_t"].flatten(0, 1), 5e-6)
    close(loss, golden.tensors["out.loss"], 5e-6)


def test_gradients(golden: SimpleNamespace) -> None:
    golden.model.zero_grad()
    velocity_and_loss(golden.model, golden.tensors, golden.c)[1].backward()
    config = golden.model.config
    checked = gradients_are_theirs(golden.model.named_parameters(), of_kind(golden.tensors, "grad."), naming(config))
    assert checked > 60


def test_sampled_actions(golden: SimpleNamespace) -> None:
    actions = golden.model.sample(packed(golden.tensors, golden.c), golden.tensors["in.sample_noise"].flatten(0, 1))
    close(actions, golden.tensors["out.sampled_actions"].flatten(0, 1), 1e-5)


def test_state_dict_goes_back_to_lerobots_keys(golden: SimpleNamespace) -> None:
    back = to_lerobot(golden.model.state_dict(), golden.model.config)
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in golden.params.items()}


def test_loading_is_strict(golden: SimpleNamespace) -> None:
    state = golden.model.state_dict()
    loading_is_strict(
        lambda broken: from_lerobot(broken, state, golden.model.config),
        golden.params, "model.action_in_proj.weight", "model.action_out_proj.bias",
    )  # fmt: skip
