"""GR00T's backbone against transformers' own SigLIP and Qwen3, run here, at sizes drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from groot_reference import layout_of
from reference import close
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.gr00t.backbone import Backbone
from vlarge.models.gr00t.config import PRESETS, GrootConfig
from vlarge.models.gr00t.convert import EAGLE, VISION, naming

MARKER = 1


def drawn_sizes(rng: np.random.Generator) -> GrootConfig:
    def draw(low: int, high: int, step: int = 1) -> int:
        return step * int(rng.integers(low, high + 1))

    kv_heads, vision_heads, patch = draw(1, 3), draw(1, 3), draw(4, 8)
    changes: dict[str, Any] = {
        "vocab_size": draw(30, 90), "width": draw(3, 10, 4), "depth": draw(1, 4), "mlp": draw(10, 70),
        "heads": kv_heads * draw(1, 3), "kv_heads": kv_heads, "head_dim": draw(2, 9, 2), "image_token": MARKER,
        "vision_width": vision_heads * draw(2, 4, 4), "vision_depth": draw(1, 3), "vision_mlp": draw(5, 50),
        "vision_heads": vision_heads, "patch": patch, "image_size": patch * draw(2, 3), "pad_token": 0,
    }  # fmt: skip
    sizes = vars(PRESETS["tiny"]) | changes | {"max_action_dim": 3, "max_state_dim": 2}
    return GrootConfig(**sizes)


def drawn_batch(c: GrootConfig, rng: np.random.Generator) -> PackedBatch:
    """Samples with any number of images, any number of which have markers anywhere in the text; texts may be empty."""
    num_samples = int(rng.integers(2, 6))
    images_B, texts = rng.integers(0, 4, num_samples), []
    for images in images_B:
        ids = rng.integers(MARKER + 1, c.vocab_size, rng.integers(0, 9))
        texts.append(rng.permutation(np.concatenate([ids, np.full(rng.integers(0, images + 1), MARKER)])))
    images_B[0], texts[0] = 1, np.array([3, MARKER, 2])  # never a batch without an image
    size = c.image_size
    return PackedBatch(
        sample_ids_B3=np.zeros((num_samples, 3), np.int64),
        images_NHWC=rng.integers(0, 256, (images_B.sum(), size, size, 3)).astype(np.uint8),
        num_images_B=images_B.astype(np.int64),
        text_T=np.concatenate(texts).astype(np.int64),
        num_text_B=np.array([len(text) for text in texts]),
        state_BA=np.zeros((num_samples, 1), np.float32),
        actions_SA=np.zeros((num_samples, 1), np.float32),
        num_actions_B=np.ones(num_samples, np.int64),
        action_dims_B=np.ones(num_samples, np.int64),
        embodiments_B=np.zeros(num_samples, np.int64),
    )


class Theirs(torch.nn.Module):
    """Both of transformers' towers, and a plain sequence of image tokens and text for each sample."""

    def __init__(self, c: GrootConfig) -> None:
        super().__init__()
        from transformers import Qwen3Config, Qwen3Model, SiglipVisionConfig, SiglipVisionModel

        vision = SiglipVisionConfig(
            hidden_size=c.vision_width, intermediate_size=c.vision_mlp, num_hidden_layers=c.vision_depth,
            num_attention_heads=c.vision_heads, image_size=c.image_size, patch_size=c.patch, vision_use_head=False,
        )  # fmt: skip
        language = Qwen3Config(
            vocab_size=c.vocab_size, hidden_size=c.width, intermediate_size=c.mlp, num_hidden_layers=c.depth,
            num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim, rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}, use_cache=False,
        )  # fmt: skip
        vision._attn_implementation = language._attn_implementation = "eager"
        self.patches = c.image_tokens
        self.vision_model = SiglipVisionModel(vision)
        self.language_model = torch.nn.ModuleDict({"model": Qwen3Model(language)})
        self.mlp1 = torch.nn.ModuleList([torch.nn.Linear(c.vision_width, c.width)])

    def forward(self, batch: PackedBatch) -> Tensor:
        pixels = torch.from_numpy(batch.images_NHWC).permute(0, 3, 1, 2).float() / 127.5 - 1
        seen = list(self.mlp1[0](self.vision_model(pixels).last_hidden_state))
        texts = torch.from_numpy(batch.text_T).split(batch.num_text_B.tolist())
        qwen, features = self.language_model["model"], []
        for text, num_images in zip(texts, batch.num_images_B, strict=True):
            own, seen = seen[:num_images], seen[num_images:]
            parts = [own.pop(0) for _ in range(num_images - int((text == MARKER).sum()))]
            parts += [own.pop(0) if i == MARKER else qwen.embed_tokens(i[None]) for i in text]
            if parts:
                features.append(qwen(inputs_embeds=torch.cat(parts)[None]).last_hidden_state[0])
        return torch.cat(features)


@pytest.mark.parametrize("seed", range(3))
def test_features_and_gradients_are_transformers_own(seed: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    c = drawn_sizes(rng)
    theirs, ours = Theirs(c), Backbone(c)
    with torch.no_grad():  # norms off one, biases off zero
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.1))
    weights = {rename(name): value for name, value in theirs.state_dict().items()}
    part = {"backbone." + name: value for name, value in ours.state_dict().items()}
    ours.load_state_dict({k.removeprefix("backbone."): v for k, v in naming(c).read(weights, part).items()})
    batch = drawn_batch(c, rng)
    a, b = ours(batch, layout_of(c, batch)), theirs(batch)
    close(a, b, 5e-6)
    probe = torch.randn_like(b)
    (a * probe).sum().backward()
    (b * probe).sum().backward()
    gradients = {rename(name): p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        gradient = naming(c).to_ours("backbone." + name, gradients[naming(c).theirs("backbone." + name)])
        assert parameter.grad is not None
        if not (name.startswith("vision.") and name.endswith(".k.bias")):  # zero but for rounding
            close(parameter.grad, gradient, 1e-5)


def rename(name: str) -> str:
    """transformers' name as it stands in a checkpoint of GR00T's."""
    return VISION + name.split("vision_model.")[-1] if name.startswith("vision_model.") else EAGLE + name
