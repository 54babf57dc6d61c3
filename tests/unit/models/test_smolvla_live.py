"""Our SmolVLA against LeRobot's own, run here, at sizes that no golden file has; and at full size, by its shapes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from reference import close, packed
from smolvla_reference import sizes_of, velocity_and_loss

from vlarge.contracts import InputError
from vlarge.data.transforms import resize_with_pad
from vlarge.models.smolvla.checkpoint import foreign_sizes
from vlarge.models.smolvla.config import PRESETS
from vlarge.models.smolvla.convert import from_lerobot, naming, to_lerobot
from vlarge.models.smolvla.model import SmolVLA

pytestmark = pytest.mark.long  # LeRobot takes tens of seconds to import


@pytest.fixture(scope="module")
def reference(shared: Path) -> ModuleType:
    sys.path.insert(0, str(shared / "oracle"))
    return importlib.import_module("gold_smolvla")


def drawn_config(seed: int) -> dict[str, Any]:
    """Sizes at random; sometimes a sample has no word or no camera.

    Few action dimensions are left out: the gradient of their bias is a sum that cancels to its rounding errors.
    """
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int, step: int = 1) -> int:
        return step * int(rng.integers(low, high + 1))

    batch, cameras, slots, chunk, max_action, max_state = draw(2, 5), draw(1, 3), draw(2, 20), draw(2, 9), 9, 11
    kv_heads, scale = draw(1, 3), draw(1, 3)
    heads, patch, vision_heads = kv_heads * draw(1, 3), draw(4, 8), draw(1, 4)
    vision = {
        "width": vision_heads * draw(2, 4, 4), "depth": draw(1, 3), "heads": vision_heads, "mlp": draw(5, 30, 2),
        "patch": patch, "image": patch * scale * draw(1, 3),
    }  # fmt: skip
    return {
        "width": heads * draw(1, 3, 8), "layers": draw(1, 6), "mlp": draw(10, 80), "heads": heads,
        "kv_heads": kv_heads, "head_dim": draw(2, 12, 2), "expert_ratio": float(rng.choice([0.5, 0.75])),
        "vocab": draw(30, 300), "vision": vision, "scale_factor": scale, "self_attn_every": draw(1, 3),
        "cameras": cameras, "lengths": [0, slots, *rng.integers(0, slots + 1, batch - 2).tolist()],
        "missing": [[b, k] for b in range(batch) for k in range(cameras) if rng.random() < 0.3], "chunk": chunk,
        "max_action": max_action, "action_dim": draw(3, max_action), "max_state": max_state,
        "state_dim": draw(1, max_state), "steps": draw(1, 10), "time": rng.uniform(0.001, 1, batch).tolist(),
        "valid": [chunk, 1, *rng.integers(1, chunk + 1, batch - 2).tolist()],
    }  # fmt: skip


@pytest.mark.parametrize("seed", [4, 5, 6, 13])  # every layer joint, every second, every third; one layer only
def test_velocity_loss_gradients_and_actions_are_lerobots(reference: ModuleType, seed: int) -> None:
    torch.set_num_threads(1)
    c = drawn_config(seed)
    theirs = reference.build(c)
    reference.C.randomize(theirs, seed)
    t, _ = reference.run(theirs, c, reference.make_inputs(c, seed))
    ours = SmolVLA(sizes_of(c))
    ours.load_state_dict(from_lerobot(theirs.state_dict(), ours.state_dict(), ours.config))
    velocity, loss = velocity_and_loss(ours, t, c)
    close(velocity, t["out.v_t"][~t["in.action_is_pad"]], 5e-6)
    close(loss, t["out.loss"], 5e-6)
    loss.backward()
    for name, parameter in ours.named_parameters():
        gradient = t.get("grad." + naming(ours.config).theirs(name))
        if gradient is not None:
            close(parameter.grad.reshape(-1), gradient.reshape(-1), 1e-5)
    close(ours.sample(packed(t, c), t["in.sample_noise"].flatten(0, 1)), t["out.sampled_actions"].flatten(0, 1), 1e-5)
    theirs.load_state_dict(to_lerobot(ours.state_dict(), ours.config))
    back, _ = reference.run(theirs, c, {k[3:]: v for k, v in t.items() if k.startswith("in.")})
    assert torch.equal(back["out.v_t"], t["out.v_t"])


def test_sizes_of_a_small_checkpoint(reference: ModuleType) -> None:
    c = drawn_config(0)
    theirs = reference.build(c)
    heads = {"head_dim": c["head_dim"], "vision_heads": c["vision"]["heads"]}
    settings = vars(theirs.config) | heads
    shapes = {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
    assert foreign_sizes(settings, shapes) == sizes_of(c)


@pytest.mark.parametrize(("height", "width"), [(48, 64), (64, 48), (13, 29)])
def test_pictures_lie_where_lerobot_puts_them(height: int, width: int) -> None:
    vla_utils = importlib.import_module("lerobot.policies.common.vla_utils")
    theirs = vla_utils.resize_with_pad(torch.ones(1, 3, height, width), 32, 32, pad_value=0)[0].permute(1, 2, 0)
    ours = resize_with_pad(np.ones((height, width, 3), np.uint8), 32, PRESETS["base"].PADDING)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.fixture(scope="module")
def full(reference: ModuleType) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Settings and shapes of the published model."""
    with torch.device("meta"):
        theirs = reference.build(reference.FULL)
    return vars(theirs.config), {name: tuple(value.shape) for name, value in theirs.state_dict().items()}


def test_the_base_preset_is_the_published_model(full: tuple[dict[str, Any], dict[str, tuple[int, ...]]]) -> None:
    settings, shapes = full
    sizes = foreign_sizes(settings, shapes)
    assert sizes == PRESETS["base"]
    with torch.device("meta"):
        ours = SmolVLA(sizes)
    assert sum(p.numel() for p in ours.parameters()) == 393_519_456
    back = to_lerobot(ours.state_dict(), sizes)
    assert {name: tuple(value.shape) for name, value in back.items()} == shapes
    assert sum(value.numel() for value in back.values()) == 450_046_176


PREFIX = "model.vlm_with_expert."


@pytest.mark.parametrize(
    ("settings", "shapes", "words"),
    [
        ({"add_image_special_tokens": True}, {}, "add_image_special_tokens is True"),
        ({"resize_imgs_with_padding": (256, 256)}, {}, "resize_imgs_with_padding"),
        ({"self_attn_every_n_layers": 3}, {}, "self_attn_every_n_layers = 3"),
        ({"self_attn_every_n_layers": 0}, {}, "needs a number from 1"),
        ({"max_state_dim": 7}, {}, "max_state_dim is 7"),
        ({"num_vlm_layers": 8}, {}, "num_vlm_layers is 8"),
        ({"head_dim": 48}, {}, "key heads have 320 dimensions"),
        ({}, {PREFIX + "vlm.model.connector.modality_projection.proj.weight": (960, 768 * 15)}, "make no square"),
        ({}, {PREFIX + "vlm.model.vision_model.embeddings.patch_embedding.weight": (512, 3, 16, 16)}, "width 512"),
        ({}, {PREFIX + "lm_expert.layers.16.input_layernorm.weight": (720,)}, "17 expert layers for 16"),
        ({}, {"model.state_proj.weight": None}, "no model.state_proj.weight"),
    ],
)
def test_what_does_not_add_up_is_refused(
    full: tuple[dict[str, Any], dict[str, tuple[int, ...]]], settings: dict, shapes: dict, words: str
) -> None:
    changed = {name: shape for name, shape in (full[1] | shapes).items() if shape}
    with pytest.raises(InputError, match=words):
        foreign_sizes(full[0] | settings, changed)
