"""The sizes of a checkpoint of Isaac-GR00T's, from its config.json and the shapes of its weights.

Sizes come from the shapes, except for those that no shape shows (numbers of heads, steps), and must agree with what
config.json says of the head. What is in neither is the same in every N1.5: heads of the vision tower, and token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from vlarge.contracts import InputError
from vlarge.models.gr00t.config import PRESETS, GrootConfig
from vlarge.models.gr00t.convert import BLOCKS, DENOISER, EAGLE, FEATURES, LANGUAGE, LEROBOT, VISION
from vlarge.models.transformers_names import num_layers, vision_sizes

Shapes = Mapping[str, tuple[int, ...]]

# What N1.5 is, where config.json leaves a choice: other values mean another network.
CHOICES: dict[tuple[str, ...], Any] = {
    ("backbone_cfg", "project_to_dim"): None,
    ("action_head_cfg", "use_vlln"): True,
    ("action_head_cfg", "add_pos_embed"): True,
    ("action_head_cfg", "diffusion_model_cfg", "interleave_self_attention"): True,
    ("action_head_cfg", "diffusion_model_cfg", "norm_type"): "ada_norm",
    ("action_head_cfg", "diffusion_model_cfg", "positional_embeddings"): None,
    ("action_head_cfg", "vl_self_attention_cfg", "positional_embeddings"): None,
}


def foreign_sizes(config: dict[str, Any], shapes: Shapes) -> GrootConfig:
    """config: the parsed config.json. shapes: of each weight, by its name, with or without LeRobot's prefix.

    Raises InputError where something is missing, where the two do not agree, or for a network that is not N1.5's.
    """
    shapes = {name.removeprefix(LEROBOT): shape for name, shape in shapes.items()}
    for path, value in CHOICES.items():
        if (found := _said(config, *path)) != value:
            raise InputError(f"config.json has {'.'.join(path)} {found!r}; GR00T N1.5 has {value!r}")
    sizes = GrootConfig(**_language(shapes), **_vision(shapes), **_head(config, shapes))
    wrong = [
        f"{name} {said} in config.json, {found} in the weights"
        for name, (said, found) in _told_twice(config, sizes, shapes).items()
        if said != found
    ]
    if wrong:
        raise InputError(f"the checkpoint's config.json does not fit its weights: {'; '.join(wrong)}")
    return sizes


def _said(config: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(config, dict) or key not in config:
            raise InputError(f"config.json has no {'.'.join(path)}: it is not of a GR00T N1.5 checkpoint")
        config = config[key]
    return config


def _shape(shapes: Shapes, name: str, num_dims: int) -> tuple[int, ...]:
    if len(shapes.get(name, ())) != num_dims:
        raise InputError(f"the checkpoint has no weight {name} of {num_dims} dimensions: it is not of GR00T N1.5")
    return shapes[name]


def _language(shapes: Shapes) -> dict[str, Any]:
    layer = LANGUAGE + "layers.0."
    embed, tied = LANGUAGE + "embed_tokens.weight", EAGLE + "language_model.lm_head.weight"
    vocab_size, width = _shape(shapes, embed if embed in shapes else tied, 2)
    (head_dim,) = _shape(shapes, layer + "self_attn.q_norm.weight", 1)
    released = PRESETS["n1.5-3b"]
    return {
        "vocab_size": vocab_size,
        "width": width,
        "depth": num_layers(shapes, LANGUAGE + "layers."),
        "mlp": _shape(shapes, layer + "mlp.gate_proj.weight", 2)[0],
        "heads": _shape(shapes, layer + "self_attn.q_proj.weight", 2)[0] // head_dim,
        "kv_heads": _shape(shapes, layer + "self_attn.k_proj.weight", 2)[0] // head_dim,
        "head_dim": head_dim,
        "image_token": released.image_token,
        "pad_token": released.pad_token,
    }


def _vision(shapes: Shapes) -> dict[str, Any]:
    return vision_sizes(VISION, shapes, partial(_shape, shapes)) | {"vision_heads": PRESETS["n1.5-3b"].vision_heads}


def _head(config: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    head = "action_head_cfg"
    names = {
        "vl_heads": (head, "vl_self_attention_cfg", "num_attention_heads"),
        "dit_heads": (head, "diffusion_model_cfg", "num_attention_heads"),
        "dit_head_dim": (head, "diffusion_model_cfg", "attention_head_dim"),
        "action_horizon": ("action_horizon",),
        "time_buckets": (head, "num_timestep_buckets"),
        "denoise_steps": (head, "num_inference_timesteps"),
    }
    sizes = {size: _said(config, *path) for size, path in names.items()}
    for size, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise InputError(f"config.json has {'.'.join(names[size])} {value!r}; it must be a number of at least 1")
    robots, state_dim, hidden = _shape(shapes, "action_head.state_encoder.layer1.W", 3)
    return sizes | {
        "vl_depth": num_layers(shapes, FEATURES.removesuffix("#.")),
        "dit_depth": num_layers(shapes, BLOCKS.removesuffix("#.")),
        "head_width": hidden,
        "future_tokens": _shape(shapes, "action_head.future_tokens.weight", 2)[0],
        "num_embodiments": robots,
        "max_action_dim": _shape(shapes, "action_head.action_encoder.W1.W", 3)[1],
        "max_state_dim": state_dim,
        "max_positions": _shape(shapes, "action_head.position_embedding.weight", 2)[0],
    }


def _told_twice(config: dict[str, Any], c: GrootConfig, shapes: Shapes) -> dict[str, tuple[Any, Any]]:
    # What config.json says beside what the weights say.
    head = "action_head_cfg"
    out_dim, width = _shape(shapes, DENOISER + "proj_out_2.weight", 2)
    vl_width = c.vl_heads * _said(config, head, "vl_self_attention_cfg", "attention_head_dim")
    return {
        "backbone_cfg.select_layer": (_said(config, "backbone_cfg", "select_layer"), c.depth),
        "num_attention_heads * attention_head_dim of diffusion_model_cfg": (c.dit_width, width),
        "num_attention_heads * attention_head_dim of vl_self_attention_cfg": (vl_width, c.width),
        "diffusion_model_cfg.output_dim": (_said(config, head, "diffusion_model_cfg", "output_dim"), out_dim),
        "diffusion_model_cfg.num_layers": (_said(config, head, "diffusion_model_cfg", "num_layers"), c.dit_depth),
        "vl_self_attention_cfg.num_layers": (_said(config, head, "vl_self_attention_cfg", "num_layers"), c.vl_depth),
        "hidden_size": (_said(config, head, "hidden_size"), c.head_width),
        "num_target_vision_tokens": (_said(config, head, "num_target_vision_tokens"), c.future_tokens),
        "action_dim": (_said(config, "action_dim"), c.max_action_dim),
        "max_state_dim": (_said(config, head, "max_state_dim"), c.max_state_dim),
    }


def lerobot_config(c: GrootConfig, max_text_tokens: int) -> dict[str, Any]:
    """LeRobot 0.6 has no GR00T N1.5: nothing is asked beside the features."""
    return {}


def lerobot_steps(c: GrootConfig, max_text_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """The numbers are normalised."""
    return [("normalizer_processor", {})]
