"""Our packed π0 and π0.5 against LeRobot 0.6.1's padded ones: velocity, loss, gradients, sampled actions."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vlarge.contracts import InputError, PackedBatch
from vlarge.models.pi0.config import Pi0Config
from vlarge.models.pi0.convert import from_lerobot, lerobot_name, to_lerobot
from vlarge.models.pi0.model import Pi0


@pytest.fixture(scope="module", params=["pi05", "pi0"])
def golden(request: pytest.FixtureRequest, shared: Path) -> SimpleNamespace:
    torch.set_num_threads(1)
    path = shared / "oracle" / f"{request.param}_seed0.safetensors"
    tensors, c = load_file(path), json.loads(path.with_suffix(".json").read_text())["config"]
    model = Pi0(golden_sizes(c, "in.state" in tensors))
    params = {key.removeprefix("param."): value for key, value in tensors.items() if key.startswith("param.")}
    model.load_state_dict(from_lerobot(params, model.state_dict(), model.config))
    return SimpleNamespace(model=model, params=params, tensors=tensors, c=c, batch=packed(tensors, c))


def golden_sizes(c: dict, has_state_token: bool) -> Pi0Config:
    v = c["vision"]
    return Pi0Config(
        vocab_size=c["vocab"],
        width=c["width"],
        depth=c["depth"],
        mlp=c["mlp"],
        heads=c["heads"],
        kv_heads=1,
        head_dim=c["head_dim"],
        expert_width=c["expert_width"],
        expert_mlp=c["expert_mlp"],
        vision_width=v["width"],
        vision_depth=v["depth"],
        vision_mlp=v["mlp"],
        vision_heads=v["heads"],
        patch=v["patch"],
        image_size=v["image"],
        action_horizon=c["chunk"],
        max_action_dim=c["max_action"],
        max_state_dim=c["max_state"] if has_state_token else 0,
    )


def packed(t: dict, c: dict) -> PackedBatch:
    """The reference's padded inputs without their padding: present cameras and real tokens only."""
    present, tokens = t["in.image_mask"], t["in.token_mask"]
    num_samples = len(present)
    return PackedBatch(
        sample_ids_B3=np.zeros((num_samples, 3), np.int64),
        images_NHWC=t["in.images"][present].permute(0, 2, 3, 1).numpy(),
        num_images_B=present.sum(1).numpy(),
        text_T=t["in.tokens"][tokens].numpy(),
        num_text_B=tokens.sum(1).numpy(),
        state_BA=t["in.state"][:, : c["state_dim"]].numpy()
        if "in.state" in t
        else np.zeros((num_samples, 1), np.float32),
        actions_SA=t["in.actions"].flatten(0, 1).numpy(),
        num_actions_B=np.full(num_samples, c["chunk"]),
        action_dims_B=np.full(num_samples, c["action_dim"]),
    )


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)
    assert error <= tolerance, f"{error:.2e} > {tolerance:.0e}"


def loss_of(golden: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    t, dims = golden.tensors, golden.c["action_dim"]
    time = t["in.time"].repeat_interleave(golden.c["chunk"])[:, None]
    actions, noise = t["in.actions"].flatten(0, 1), t["in.noise"].flatten(0, 1)
    velocity = golden.model(golden.batch, time * noise + (1 - time) * actions, t["in.time"])
    return velocity, (velocity - (noise - actions))[:, :dims].square().mean()


def test_velocity_and_loss(golden: SimpleNamespace) -> None:
    velocity, loss = loss_of(golden)
    close(velocity, golden.tensors["out.v_t"].flatten(0, 1), 5e-6)
    close(loss, golden.tensors["out.loss"], 5e-6)


def test_gradients(golden: SimpleNamespace) -> None:
    golden.model.zero_grad()
    loss_of(golden)[1].backward()
    checked = 0
    for name, parameter in golden.model.named_parameters():
        assert parameter.grad is not None, f"{name} is dead"
        theirs = golden.tensors.get("grad." + lerobot_name(name, golden.model.config))
        if theirs is None:  # attention-key biases: zero in exact arithmetic
            assert name.endswith(".k.bias")
            continue
        ours = parameter.grad
        close(ours.reshape(-1), theirs.reshape(-1)[: ours.numel()], 1e-5)
        checked += 1
    assert checked > 60


def test_sampled_actions(golden: SimpleNamespace) -> None:
    actions = golden.model.sample(golden.batch, golden.tensors["in.sample_noise"].flatten(0, 1))
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
