"""Our packed GR00T N1.5 against LeRobot 0.5.1's: features, velocity, loss, gradients, sampled actions."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from groot_reference import ROOTS, layout_of, masked_loss, noised, packed, read_golden, sizes_of
from reference import close, gradients_are_theirs, loading_is_strict, of_kind
from torch import Tensor

from vlarge.models.flow import sample_ode
from vlarge.models.gr00t.convert import from_lerobot, naming, to_lerobot
from vlarge.models.gr00t.model import Groot

FILES = {"head": "groot_seed0", "backbone": "groot_backbone_seed0", "full": "groot_full_seed0"}


def load(shared: Path, kind: str) -> SimpleNamespace:
    """A golden file, and our model with its weights."""
    torch.set_num_threads(1)
    tensors, params, c, _ = read_golden(shared / "oracle" / f"{FILES[kind]}.safetensors")
    model = Groot(sizes_of(c))
    part = {name: value for name, value in model.state_dict().items() if kind == "full" or name.startswith(kind)}
    model.load_state_dict(from_lerobot(params, part, model.config), strict=kind == "full")
    batch = packed(tensors, c)
    return SimpleNamespace(
        model=model, params=params, tensors=tensors, c=c, kind=kind, batch=batch, layout=layout_of(model.config, batch)
    )


@pytest.fixture(scope="module")
def head(shared: Path) -> SimpleNamespace:
    return load(shared, "head")


@pytest.fixture(scope="module")
def backbone(shared: Path) -> SimpleNamespace:
    return load(shared, "backbone")


@pytest.fixture(scope="module")
def full(shared: Path) -> SimpleNamespace:
    return load(shared, "full")


def checked_gradients(golden: SimpleNamespace) -> int:
    """How many of the part that the file is of; the whole model's file leaves the head's to its own."""
    part, elsewhere = (golden.kind + ".", "") if golden.kind != "full" else ("", "head.")
    parameters = [(name, p) for name, p in golden.model.named_parameters() if name.startswith(part)]
    gradients = of_kind(golden.tensors, "grad.", ROOTS[golden.kind])
    checked = gradients_are_theirs(parameters, gradients, naming(golden.model.config), elsewhere)
    golden.model.zero_grad()
    return checked


def head_velocity(golden: SimpleNamespace) -> Tensor:
    context = golden.model.head.read(
        golden.tensors["in.vl_features"].flatten(0, 1), golden.batch.state_BA, golden.layout
    )
    return golden.model.head.velocity(noised(golden.tensors), golden.tensors["in.time"], context, golden.layout)


def test_head_velocity_loss_and_gradients(head: SimpleNamespace) -> None:
    t, seen = head.tensors, {}
    head.model.head.denoiser.out.register_forward_hook(lambda _m, _in, out: seen.update(denoiser=out))
    velocity = head_velocity(head)
    own = head.model.head
    features = own.advance(own.norm(t["in.vl_features"].flatten(0, 1)), range(len(own.blocks)), head.layout)
    close(features, t["mid.vl_embs"].flatten(0, 1), 5e-6)
    close(seen["denoiser"], t["mid.dit_out"][:, -head.c["horizon"] :].flatten(0, 1), 5e-6)
    close(velocity, t["out.v_t"].flatten(0, 1), 5e-6)
    loss = masked_loss(velocity, t)
    close(loss, t["out.loss"], 5e-6)
    loss.backward()
    assert checked_gradients(head) > 80


def test_head_sampled_actions(head: SimpleNamespace) -> None:
    t, model = head.tensors, head.model
    with torch.no_grad():
        context = model.head.read(t["in.vl_features"].flatten(0, 1), head.batch.state_BA, head.layout)

        def velocity(x_SA: Tensor, time: float) -> Tensor:
            return model.head.velocity(x_SA, torch.full((head.batch.num_samples,), time), context, head.layout)

        actions = sample_ode(velocity, t["in.sample_noise"].flatten(0, 1), model.flow, model.config.denoise_steps)
    close(actions, t["out.sampled_actions"].flatten(0, 1), 1e-5)


def test_backbone_features_and_gradients(backbone: SimpleNamespace) -> None:
    t, seen = backbone.tensors, {}
    backbone.model.backbone.projector.register_forward_hook(lambda _m, _in, out: seen.update(images=out))
    features = backbone.model.backbone(backbone.batch, backbone.layout)
    real = t["in.eagle_attention_mask"].bool()
    close(seen["images"], t["mid.vision_embs"].flatten(0, 1), 5e-6)
    close(features, t["out.features"][real], 5e-6)
    loss = (features * t["in.probe"][real]).sum() / real.sum()
    close(loss, t["out.loss"], 5e-6)
    loss.backward()
    assert checked_gradients(backbone) > 50


def test_whole_model(full: SimpleNamespace) -> None:
    t = full.tensors
    velocity = full.model(full.batch, noised(t), t["in.time"])
    close(velocity, t["out.v_t"].flatten(0, 1), 5e-6)
    loss = masked_loss(velocity, t)
    close(loss, t["out.loss"], 5e-6)
    loss.backward()
    assert checked_gradients(full) > 70
    actions = full.model.sample(full.batch, t["in.sample_noise"].flatten(0, 1))
    close(actions, t["out.sampled_actions"].flatten(0, 1), 1e-5)


def test_state_dict_goes_back_to_their_keys(full: SimpleNamespace) -> None:
    state = full.model.state_dict()
    back = to_lerobot(state, full.model.config)
    head = {"backbone.eagle_model.language_model.lm_head.weight": (300, 48)}  # tied: stored once
    assert {k: tuple(v.shape) for k, v in back.items()} == {k: tuple(v.shape) for k, v in full.params.items()} | head
    again = from_lerobot(back, state, full.model.config)
    assert all(torch.equal(again[name], value) for name, value in state.items())


def test_embeddings_come_under_either_name_and_with_lerobots_prefix(full: SimpleNamespace) -> None:
    state, ours = full.model.state_dict(), full.model.state_dict()["backbone.embed.weight"]
    embed, head = (f"backbone.eagle_model.language_model.{n}.weight" for n in ("model.embed_tokens", "lm_head"))
    untied = full.params | {head: torch.zeros_like(full.params[embed])}
    only_head = {head if name == embed else name: value for name, value in full.params.items()}
    prefixed = {"_groot_model." + name: value for name, value in untied.items()}
    for theirs in (untied, only_head, prefixed):
        assert torch.equal(from_lerobot(theirs, state, full.model.config)["backbone.embed.weight"], ours)


def test_loading_is_strict(full: SimpleNamespace) -> None:
    state, config = full.model.state_dict(), full.model.config
    weight, bias = "action_head.vlln.weight", "action_head.action_encoder.W2.b"
    loading_is_strict(lambda broken: from_lerobot(broken, state, config), full.params, weight, bias)
