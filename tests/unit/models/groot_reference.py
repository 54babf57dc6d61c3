"""GR00T N1.5 of LeRobot 0.5.1 beside ours: sizes, inputs and losses of the one for the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.attention import AUTO
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.layout import GrootLayout, lay_out

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
    tensors, meta = load_file(path), json.loads(path.with_suffix(".json").read_text())
    params = {ROOTS[meta["kind"]] + k.removeprefix("param."): v for k, v in tensors.items() if k.startswith("param.")}
    return tensors, params, meta["config"], meta["kind"]


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
