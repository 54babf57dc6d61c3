"""SmolVLA weights by LeRobot's names ↔ ours: strict, by one table; and the sizes of a checkpoint of LeRobot's.

What the reference stores and never uses is not part of our model: the language head (which is not tied to the
embeddings), all of the last language layer but its keys and values, the language model's final norm. Reading drops it;
writing puts zeros there, so that LeRobot's strict loading is content. Older checkpoints also hold statistics of their
datasets, which are no part of a network (LeRobot moves them to its processors): reading drops them too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from torch import Tensor

from vlarge.contracts import InputError
from vlarge.models.naming import Naming
from vlarge.models.smolvla.config import SmolVLAConfig
from vlarge.models.smolvla.model import language_config
from vlarge.models.transformers_names import beyond_keys, decoder_names, vision_names

VLM = "model.vlm_with_expert.vlm."
VISION = VLM + "model.vision_model."
CONNECTOR = VLM + "model.connector.modality_projection.proj."
TEXT = VLM + "model.text_model."
EXPERT = "model.vlm_with_expert.lm_expert."
HEAD_DIM = 64  # of every SmolVLM's language model
VISION_HEADS = {768: 12, 1152: 16}  # of SigLIP's towers, by their width
STATISTICS = re.compile(r"(normalize_inputs|normalize_targets|unnormalize_outputs)\.")

TABLE = {
    **vision_names("vision.", VISION),
    "connector.proj.": CONNECTOR,
    "embed.": TEXT + "embed_tokens.",
    **decoder_names("language_layers.", TEXT + "layers."),
    **decoder_names("expert_layers.", EXPERT + "layers."),
    "expert_norm.": EXPERT + "norm.",
    "state_in.": "model.state_proj.",
    "action_in.": "model.action_in_proj.",
    "action_out.": "model.action_out_proj.",
    "time_in.": "model.action_time_mlp_in.",
    "time_out.": "model.action_time_mlp_out.",
}


def from_lerobot(theirs: dict[str, Tensor], ours: dict[str, Tensor], c: SmolVLAConfig) -> dict[str, Tensor]:
    """Our state dict, filled from LeRobot's. `ours` gives names and shapes (meta tensors do).

    Raises one InputError that lists every missing, unexpected and mis-shaped key.
    """
    return naming(c).read({key: value for key, value in theirs.items() if not STATISTICS.match(key)}, ours)


def to_lerobot(ours: dict[str, Tensor], c: SmolVLAConfig) -> dict[str, Tensor]:
    """The full state dict that LeRobot 0.6.1's SmolVLA loads strictly."""
    return naming(c).write(ours)


def naming(c: SmolVLAConfig) -> Naming:
    """LeRobot's names for a model of these sizes."""

    def to_ours(name: str, value: Tensor) -> Tensor:
        return value.flatten(1) if name == "vision.patch_embed.weight" else value

    def to_theirs(name: str, value: Tensor) -> Tensor:
        return value.unflatten(1, (3, c.patch, c.patch)) if name == "vision.patch_embed.weight" else value

    unused = beyond_keys(f"{TEXT}layers.{c.depth - 1}.", language_config(c, c.width, c.mlp))
    unused |= {TEXT + "norm.weight": (c.width,), VLM + "lm_head.weight": (c.vocab_size, c.width)}
    return Naming(TABLE, unused, to_ours=to_ours, to_theirs=to_theirs)


def sizes_from_lerobot(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> SmolVLAConfig:
    """The sizes of a checkpoint of LeRobot's, from its config.json and its weights' shapes by their names.

    What no shape tells is `head_dim` and `vision_heads` of the config, and for SmolVLM's own models need not be there.
    Raises InputError where the two contradict each other or ask for what this model has not.
    """
    shape = _shapes(shapes)
    vocab_size, width = shape("embed.weight")
    expert_mlp, expert_width = shape("expert_layers.0.mlp.gate.weight")
    vision_width, _, patch, _ = shape("vision.patch_embed.weight")
    head_dim = config.get("head_dim", HEAD_DIM)
    sizes = SmolVLAConfig(
        vocab_size=vocab_size,
        width=width,
        depth=_num_layers("language_layers", shapes),
        mlp=shape("language_layers.0.mlp.gate.weight")[0],
        heads=_part("query heads", shape("language_layers.0.query.q.weight")[0], head_dim),
        kv_heads=_part("key heads", shape("language_layers.0.key_value.k.weight")[0], head_dim),
        head_dim=head_dim,
        expert_width=expert_width,
        expert_mlp=expert_mlp,
        vision_width=vision_width,
        vision_depth=_num_layers("vision.blocks", shapes),
        vision_mlp=shape("vision.blocks.0.up.weight")[0],
        vision_heads=_vision_heads(config, vision_width),
        patch=patch,
        image_size=patch * _side("patches of an image", shape("vision.positions")[0]),
        scale_factor=_side("patches of a token", _part("patches", shape("connector.proj.weight")[1], vision_width)),
        action_horizon=_setting(config, "chunk_size", 50),
        max_action_dim=shape("action_in.weight")[1],
        max_state_dim=shape("state_in.weight")[1],
        self_attn_every=_setting(config, "self_attn_every_n_layers", 2),
        denoise_steps=_setting(config, "num_steps", 10),
    )
    _check_expert(sizes, shape, _num_layers("expert_layers", shapes))
    _check_settings(sizes, config)
    return sizes


def _theirs(ours: str) -> str:
    return Naming(TABLE).theirs(ours)


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> Callable[[str], tuple[int, ...]]:
    # Of a weight, by our name.
    def shape(ours: str) -> tuple[int, ...]:
        if _theirs(ours) not in shapes:
            raise InputError(f"the checkpoint has no {_theirs(ours)}; is it a SmolVLA of LeRobot's?")
        return tuple(shapes[_theirs(ours)])

    return shape


def _num_layers(part: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
    return next(i for i in count() if _theirs(f"{part}.{i}.norm1.weight") not in shapes)


def _part(what: str, whole: int, divisor: int) -> int:
    if whole % divisor:
        raise InputError(f"the checkpoint's {what} have {whole} dimensions, which is not a multiple of {divisor}")
    return whole // divisor


def _side(what: str, number: int) -> int:
    if math.isqrt(number) ** 2 != number:
        raise InputError(f"the checkpoint has {number} {what}, which make no square")
    return math.isqrt(number)


def _vision_heads(config: Mapping[str, Any], width: int) -> int:
    heads = config.get("vision_heads", VISION_HEADS.get(width))
    if not isinstance(heads, int):
        raise InputError(f"nothing says how many heads a vision tower of width {width} has: give vision_heads")
    return heads


def _setting(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"the checkpoint's {name} is {value!r}; vlarge's SmolVLA needs a number from 1")
    return value


def _check_expert(c: SmolVLAConfig, shape: Callable[[str], tuple[int, ...]], depth: int) -> None:
    if depth != c.depth:
        raise InputError(f"the checkpoint has {depth} expert layers for {c.depth} language layers; vlarge needs equal")
    for i in range(depth):
        ours = c.expert_width if c.is_joint(i) else c.kv_heads * c.head_dim
        found = shape(f"expert_layers.{i}.key_value.k.weight")[1]
        if found != ours:
            raise InputError(
                f"the keys of expert layer {i} are made from {found} dimensions, by the checkpoint's"
                f" self_attn_every_n_layers = {c.self_attn_every} from {ours}"
            )


def _check_settings(c: SmolVLAConfig, config: Mapping[str, Any]) -> None:
    # What has to be so where the config says it: as the weights have it, or as the model is made.
    size = c.image_size
    for name, fitting in {
        "type": ("smolvla",),
        "max_action_dim": (c.max_action_dim,),
        "max_state_dim": (c.max_state_dim,),
        "num_vlm_layers": (c.depth, 0, -1),
        "resize_imgs_with_padding": ([size, size], (size, size), None),
        "attention_mode": ("cross_attn",),
        "add_image_special_tokens": (False,),
        "adapt_to_pi_aloha": (False,),
        "min_period": (4e-3,),
        "max_period": (4.0,),
    }.items():
        if name in config and config[name] not in fitting:
            raise InputError(f"the checkpoint's {name} is {config[name]!r}; this model needs {fitting[0]!r}")
