"""GR00T N1.5 of LeRobot 0.5.1 beside ours: sizes, inputs and losses of the one for the other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import reference
import torch
import torch.nn.functional as F
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.attention import AUTO
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.denoiser import Denoiser
from vlarge.models.gr00t.head import Head
from vlarge.models.gr00t.layout import GrootLayout, lay_out
from vlarge.models.gr00t.model import Groot

ROOTS = {"head": "action_head.", "backbone": "backbone.", "full": ""}  # what the names in a golden file begin with


def sizes_of(c: dict[str, Any], **changes: Any) -> GrootConfig:
    """From the `config` of a golden file."""
    llm, vision = c["llm"], c["vision"]
    return GrootConfig(
        **{
            "vocab_size": llm["vocab"], "image_token": llm["image_token"], "pad_token": 0,
            **{name: llm[name] for name in ("width", "depth", "mlp", "heads", "kv_heads", "head_dim")},
            **{f"vision_{name}": vision[name] for name in ("width", "depth", "mlp", "heads")},
            "patch": vision["patch"], "image_size": vision["image"],
            "vl_depth": c["vl_depth"], "vl_heads": c["vl_heads"],
            "dit_depth": c["depth"], "dit_heads": c["heads"], "dit_head_dim": c["head_dim"],
            "head_width": c["head_hidden"], "future_tokens": c["future"], "num_embodiments": c["embodiments"],
            "action_horizon": c["horizon"], "max_action_dim": c["max_action"], "max_state_dim": c["max_state"],
            "max_positions": c["max_pos"], "denoise_steps": c["steps"],
        }
        | changes
    )  # fmt: skip


def read_golden(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any], str]:
    """Its tensors, its parameters by their full names, its sizes, and which part of the model it has."""
    tensors, _, meta = reference.read_golden(path)
    return tensors, reference.of_kind(tensors, "param.", ROOTS[meta["kind"]]), meta["config"], meta["kind"]


def packed(t: dict[str, Tensor], c: dict[str, Any]) -> PackedBatch:
    """The reference's inputs without padding: one marker for each image, real tokens only.

    Inputs of the head alone get a text of as many tokens as there are features.
    """
    num_samples, patches = len(c["time"]), (c["vision"]["image"] // c["vision"]["patch"]) ** 2
    texts = [np.zeros(c["tokens"], np.int64)] * num_samples
    images = np.zeros((0, 0, 0, 3), np.float32)
    if "in.eagle_input_ids" in t:
        rows = zip(t["in.eagle_input_ids"], t["in.eagle_attention_mask"].bool(), strict=True)
        texts = [one_marker_each(ids[mask].numpy(), c["llm"]["image_token"], patches) for ids, mask in rows]
        images = t["in.eagle_pixel_values"].permute(0, 2, 3, 1).numpy()
    state = t["in.state"][:, 0] if "in.state" in t else torch.zeros(num_samples, 1)
    return PackedBatch(
        sample_ids_B3=np.zeros((num_samples, 3), np.int64),
        images_NHWC=images,
        num_images_B=np.full(num_samples, len(images) // num_samples),
        text_T=np.concatenate(texts),
        num_text_B=np.array([len(text) for text in texts]),
        state_BA=state.numpy(),
        actions_SA=t["in.action"].flatten(0, 1).numpy() if "in.action" in t else np.zeros((num_samples, 1)),
        num_actions_B=np.full(num_samples, c["horizon"]),
        action_dims_B=np.array(c["action_dims"]),
        embodiments_B=np.array(c["embodiment_id"]),
    )


def one_marker_each(ids: np.ndarray, image_token: int, patches: int) -> np.ndarray:
    """Ids with one marker for an image, of those that repeat it for each of its tokens."""
    rank = np.cumsum(ids == image_token) - 1
    return ids[(ids != image_token) | (rank % patches == 0)]


def layout_of(sizes: GrootConfig, batch: PackedBatch, num_draws: int = 1) -> GrootLayout:
    return lay_out(sizes, batch, num_draws, AUTO)


def noised(t: dict[str, Tensor]) -> Tensor:
    time = t["in.time"][:, None, None]
    return ((1 - time) * t["in.noise"] + time * t["in.action"]).flatten(0, 1)


def masked_loss(velocity: Tensor, t: dict[str, Tensor]) -> Tensor:
    """The reference's: all steps go through the network, those that are not real are masked out."""
    mask = t["in.action_mask"].flatten(0, 1)
    target = (t["in.action"] - t["in.noise"]).flatten(0, 1)
    return ((velocity - target).square() * mask).sum() / mask.sum()


def dense(model: Groot, batch: PackedBatch, noised_SA: Tensor, time_B: Tensor) -> Tensor:
    """Velocities as the definition has them: padded features, one sample at a time, every token to the end.

    An own computation from the model's weights alone. With `attend_padding` it is what the released code computes.
    """
    c, lengths = model.config, batch.num_actions_B.tolist()
    features = feature_rows(model, batch)
    parts = zip(features, batch.state_BA, batch.embodiments_B, noised_SA.split(lengths), time_B, strict=True)
    return torch.cat([_dense_sample(model.head, c, *part) for part in parts])


def feature_rows(model: Groot, batch: PackedBatch) -> list[Tensor]:
    """Each sample's features, from the backbone alone; with `attend_padding`, those of pads before them."""
    c = model.config
    plain = replace(c, attend_padding=False)
    layout = layout_of(plain, batch)
    rows = list(model.backbone(batch, layout).split(list(layout.features.q_lengths)))
    if not c.attend_padding:
        return rows
    pad = model.backbone.embed.weight[c.pad_token]
    for layer in model.backbone.layers:  # masked out as queries: the attention adds nothing
        pad = pad + layer.mlp(layer.norm2(pad))
    longest = max(map(len, rows))
    return [torch.cat((model.backbone.norm(pad).expand(longest - len(x), -1), x)) for x in rows]


def _dense_sample(head: Head, c: GrootConfig, features: Any, state: Any, robot: Any, noised: Any, t: Tensor) -> Tensor:
    x = head.norm(features)
    for block in head.blocks:
        y = block.norm1(x)
        x = x + _softmax_attention(block.attention, y, y)
        x = x + block.mlp(block.norm2(x))
    features, robot = x, int(robot)

    def own(layer: Any, x: Tensor) -> Tensor:
        return x @ layer.weight[robot] + layer.bias[robot]

    state = torch.cat((torch.from_numpy(state), torch.zeros(c.max_state_dim - len(state))))[None]
    state = own(head.state_encoder.second, own(head.state_encoder.first, state).relu())
    t = torch.floor(t * c.time_buckets)
    waves = torch.arange(c.dit_width // 2) * -(math.log(10000) / (c.dit_width // 2))
    waves = torch.cat(((t * waves.exp()).sin(), (t * waves.exp()).cos())).expand(len(noised), -1)
    encoder = head.action_encoder
    actions = own(encoder.second, torch.cat((own(encoder.first, noised), waves), 1))
    actions = own(encoder.third, actions * actions.sigmoid()) + head.positions[: len(noised)]
    x = _dense_denoiser(head.denoiser, torch.cat((state, head.future, actions)), features, t)
    return own(head.action_decoder.second, own(head.action_decoder.first, x).relu())[-len(noised) :]


def _dense_denoiser(net: Denoiser, x: Tensor, features: Tensor, t: Tensor) -> Tensor:
    waves = (torch.arange(128) * -math.log(10000) / 127).exp() * t
    time = net.time_out(F.silu(net.time_in(torch.cat((waves.cos(), waves.sin())))))

    def adapted(norm: Any, x: Tensor, eps: float) -> Tensor:
        scale, shift = norm.dense(F.silu(time)).chunk(2)
        return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift

    for number, block in enumerate(net.blocks):
        y = adapted(block.norm1, x, 1e-5)
        x = x + _softmax_attention(block.attention, y, y if number % 2 else features)
        x = x + block.mlp(F.layer_norm(x, x.shape[-1:], eps=1e-5))
    return net.out(adapted(net.norm, x, 1e-6))


def _softmax_attention(attention: Any, y: Tensor, context: Tensor) -> Tensor:
    q, k, v = (f(x).unflatten(-1, (-1, attention.head_dim)).transpose(0, 1) for f, x in (
        (attention.q, y), (attention.k, context), (attention.v, context),
    ))  # fmt: skip
    scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
    return attention.o((scores @ v).transpose(0, 1).flatten(1))
