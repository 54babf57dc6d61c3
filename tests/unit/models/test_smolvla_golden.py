"""Our packed SmolVLA against LeRobot 0.6.1's padded one: velocity, loss, gradients, sampled actions."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from reference import close, gradients_are_theirs, loading_is_strict, of_kind, packed, read_golden
from smolvla_reference import sizes_of, velocity_and_loss

from vlarge.models.smolvla.convert import from_lerobot, naming, to_lerobot
from vlarge.models.smolvla.model import SmolVLA


@pytest.fixture(scope="module")
def golden(shared: Path) -> SimpleNamespace:
    torch.set_num_threads(1)
    tensors, params, meta = read_golden(shared / "oracle" / "smolvla_seed0.safetensors")
    model = SmolVLA(sizes_of(meta["config"]))
    model.load_state_dict(from_lerobot(params, model.state_dict(), model.config))
    return SimpleNamespace(model=model, params=params, tensors=tensors, c=meta["config"], dead=meta["dead_params"])


def test_velocity_and_loss_without_the_padded_steps(golden: SimpleNamespace) -> None:
    velocity, loss = velocity_and_loss(golden.model, golden.tensors, golden.c)
    valid = ~golden.tensors["in.action_is_pad"]
    assert 0 < valid.sum() == len(velocity) < valid.numel()
    close(velocity, golden.tensors["out.v_t"][valid], 5e-6)
    close(loss, golden.tensors["out.loss"], 5e-6)


def test_gradients(golden: SimpleNamespace) -> None:
    golden.model.zero_grad()
    velocity_and_loss(golden.model, golden.tensors, golden.c)[1].backward()
    config = golden.model.config
    checked = gradients_are_theirs(golden.model.named_parameters(), of_kind(golden.tensors, "grad."), naming(config))
    assert checked == sum(key.startswith("grad.") for key in golden.tensors)


def test_sampled_actions(golden: SimpleNamespace) -> None:
    actions = golden.model.sample(packed(golden.tensors, golden.c), golden.tensors["in.sample_noise"].flatten(0, 1))
    close(actions, golden.tensors["out.sampled_actions"].flatten(0, 1), 1e-5)


def test_state_dict_goes_back_to_lerobots_keys(golden: SimpleNamespace) -> None:
    """All but what the reference itself never uses comes back as it was."""
    back = to_lerobot(golden.model.state_dict(), golden.model.config)
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in golden.params.items()}
    changed = [key for key, value in back.items() if not torch.equal(value, golden.params[key])]
    assert sorted(changed) == sorted(golden.dead)


def test_loading_is_strict_but_for_old_statistics(golden: SimpleNamespace) -> None:
    state, old = golden.model.state_dict(), "normalize_inputs.buffer_observation_state.mean"
    found = from_lerobot(golden.params | {old: torch.zeros(6)}, state, golden.model.config)
    assert found.keys() == state.keys()
    loading_is_strict(
        lambda broken: from_lerobot(broken, state, golden.model.config),
        golden.params, "model.action_in_proj.weight", "model.action_out_proj.bias",
    )  # fmt: skip
