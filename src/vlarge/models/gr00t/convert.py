"""GR00T N1.5 weights by Isaac-GR00T's names ↔ ours: strict, by one table. LeRobot's have a prefix, which is taken off.

What their checkpoints store and no output depends on is not part of our model: the language head (tied or not), the
vision tower's pooling head, and positions beyond the action horizon. Reading drops it; writing puts zeros there (the
language head repeats the embedding), so that their strict loading is content.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.naming import Naming
from vlarge.models.transformers_names import decoder_names, vision_names

LEROBOT = "_groot_model."
EAGLE = "backbone.eagle_model."
VISION = EAGLE + "vision_model.vision_model."
LANGUAGE = EAGLE + "language_model.model."
FEATURES = "action_head.vl_self_attention.transformer_blocks.#."
DENOISER = "action_head.model."
BLOCKS = DENOISER + "transformer_blocks.#."

PARTS_OF_BLOCKS = {
    "attention.q.": "attn1.to_q.",
    "attention.k.": "attn1.to_k.",
    "attention.v.": "attn1.to_v.",
    "attention.o.": "attn1.to_out.0.",
    "mlp.up.": "ff.net.0.proj.",
    "mlp.down.": "ff.net.2.",
}
LAYERS = {
    "state_encoder.first": "state_encoder.layer1",
    "state_encoder.second": "state_encoder.layer2",
    "action_encoder.first": "action_encoder.W1",
    "action_encoder.second": "action_encoder.W2",
    "action_encoder.third": "action_encoder.W3",
    "action_decoder.first": "action_decoder.layer1",
    "action_decoder.second": "action_decoder.layer2",
}
# ours -> Isaac-GR00T's, `#` stands for a layer number
TABLE = {
    **vision_names("backbone.vision.", VISION),
    "backbone.projector.": EAGLE + "mlp1.0.",
    "backbone.embed.": LANGUAGE + "embed_tokens.",
    **decoder_names("backbone.layers.", LANGUAGE + "layers."),
    "backbone.layers.#.query.norm.": LANGUAGE + "layers.#.self_attn.q_norm.",
    "backbone.layers.#.key_value.norm.": LANGUAGE + "layers.#.self_attn.k_norm.",
    "backbone.norm.": LANGUAGE + "norm.",
    "head.norm.": "action_head.vlln.",
    "head.blocks.#.norm1.": FEATURES + "norm1.",
    "head.blocks.#.norm2.": FEATURES + "norm3.",
    "head.denoiser.time_in.": DENOISER + "timestep_encoder.timestep_embedder.linear_1.",
    "head.denoiser.time_out.": DENOISER + "timestep_encoder.timestep_embedder.linear_2.",
    "head.denoiser.blocks.#.norm1.dense.": BLOCKS + "norm1.linear.",
    "head.denoiser.norm.dense.": DENOISER + "proj_out_1.",
    "head.denoiser.out.": DENOISER + "proj_out_2.",
    "head.future": "action_head.future_tokens.weight",
    "head.positions": "action_head.position_embedding.weight",
}
TABLE |= {f"head.blocks.#.{ours}": FEATURES + theirs for ours, theirs in PARTS_OF_BLOCKS.items()}
TABLE |= {f"head.denoiser.blocks.#.{ours}": BLOCKS + theirs for ours, theirs in PARTS_OF_BLOCKS.items()}
TABLE |= {
    f"head.{ours}.{kind}": f"action_head.{theirs}.{their_kind}"
    for ours, theirs in LAYERS.items()
    for kind, their_kind in (("weight", "W"), ("bias", "b"))
}


def from_lerobot(theirs: dict[str, Tensor], ours: dict[str, Tensor], c: GrootConfig) -> dict[str, Tensor]:
    """Our state dict, filled from Isaac-GR00T's or LeRobot's. `ours` gives names and shapes (meta tensors do).

    Raises one InputError that lists every missing, unexpected and mis-shaped key.
    """
    return naming(c).read({key.removeprefix(LEROBOT): value for key, value in theirs.items()}, ours)


def to_lerobot(ours: dict[str, Tensor], c: GrootConfig) -> dict[str, Tensor]:
    """The full state dict that Isaac-GR00T's N1.5 loads strictly."""
    return naming(c).write(ours)


def naming(c: GrootConfig) -> Naming:
    """Isaac-GR00T's names for a model of these sizes."""

    def to_ours(name: str, value: Tensor) -> Tensor:
        if name == "backbone.vision.patch_embed.weight":
            return value.flatten(1)
        if name == "head.positions":
            return value[: c.action_horizon]
        return _swap_halves(value) if name.startswith("head.denoiser.norm.dense.") else value

    def to_theirs(name: str, value: Tensor) -> Tensor:
        if name == "backbone.vision.patch_embed.weight":
            return value.unflatten(1, (3, c.patch, c.patch))
        if name == "head.positions":
            return F.pad(value, (0, 0, 0, c.max_positions - len(value)))
        return _swap_halves(value) if name.startswith("head.denoiser.norm.dense.") else value

    copies = {EAGLE + "language_model.lm_head.weight": LANGUAGE + "embed_tokens.weight"}
    return Naming(TABLE, unused_shapes(c), copies, to_ours, to_theirs)


def _swap_halves(value: Tensor) -> Tensor:
    # The last norm has its shift before its scale, the others behind it.
    return torch.cat(value.chunk(2)[::-1])


def unused_shapes(c: GrootConfig) -> dict[str, tuple[int, ...]]:
    """The vision tower's pooling head."""
    width, mlp, pool = c.vision_width, c.vision_mlp, VISION + "head."
    return {
        pool + "probe": (1, 1, width),
        pool + "attention.in_proj_weight": (3 * width, width),
        pool + "attention.in_proj_bias": (3 * width,),
        pool + "attention.out_proj.weight": (width, width),
        pool + "attention.out_proj.bias": (width,),
        pool + "layernorm.weight": (width,),
        pool + "layernorm.bias": (width,),
        pool + "mlp.fc1.weight": (mlp, width),
        pool + "mlp.fc1.bias": (mlp,),
        pool + "mlp.fc2.weight": (width, mlp),
        pool + "mlp.fc2.bias": (width,),
    }
