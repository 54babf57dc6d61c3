"""What a checkpoint folder of LeRobot's says beside SmolVLA's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vlarge.contracts import InputError
from vlarge.models.naming import Naming
from vlarge.models.smolvla.config import SmolVLAConfig
from vlarge.models.smolvla.convert import EXPERT, TABLE, TEXT, VISION
from vlarge.models.transformers_names import num_layers, side, vision_sizes

HEAD_DIM = 64  # of every SmolVLM's language model
VISION_HEADS = {768: 12, 1152: 16}  # of SigLIP's towers, by their width
TOKENIZER = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"


def foreign_sizes(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> SmolVLAConfig:
    """The sizes of a checkpoint of LeRobot's, from its config.json and its weights' shapes by their names.

    What no shape tells is `head_dim` and `vision_heads` of the config, and for SmolVLM's own models need not be there.
    Raises InputError where the two contradict each other or ask for what this model has not.
    """

    def theirs(name: str, _num_dims: int = 0) -> tuple[int, ...]:
        if name not in shapes:
            raise InputError(f"the checkpoint has no {name}; is it a SmolVLA of LeRobot's?")
        return tuple(shapes[name])

    def shape(ours: str) -> tuple[int, ...]:
        return theirs(Naming(TABLE).theirs(ours))

    vocab_size, width = shape("embed.weight")
    expert_mlp, expert_width = shape("expert_layers.0.mlp.gate.weight")
    vision = vision_sizes(VISION, shapes, theirs)
    vision_width = vision["vision_width"]
    head_dim = config.get("head_dim", HEAD_DIM)
    sizes = SmolVLAConfig(
        vocab_size=vocab_size,
        width=width,
        depth=num_layers(shapes, TEXT + "layers."),
        mlp=shape("language_layers.0.mlp.gate.weight")[0],
        heads=_part("query heads", shape("language_layers.0.query.q.weight")[0], head_dim),
        kv_heads=_part("key heads", shape("language_layers.0.key_value.k.weight")[0], head_dim),
        head_dim=head_dim,
        expert_width=expert_width,
        expert_mlp=expert_mlp,
        **vision,
        vision_heads=_vision_heads(config, vision_width),
        scale_factor=side("patches of a token", _part("patches", shape("connector.proj.weight")[1], vision_width)),
        action_horizon=_setting(config, "chunk_size", 50),
        max_action_dim=shape("action_in.weight")[1],
        max_state_dim=shape("state_in.weight")[1],
        self_attn_every=_setting(config, "self_attn_every_n_layers", 2),
        denoise_steps=_setting(config, "num_steps", 10),
    )
    _check_expert(sizes, shape, num_layers(shapes, EXPERT + "layers."))
    _check_settings(sizes, config)
    return sizes


def _part(what: str, whole: int, divisor: int) -> int:
    if whole % divisor:
        raise InputError(f"the checkpoint's {what} have {whole} dimensions, which is not a multiple of {divisor}")
    return whole // divisor


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


def lerobot_config(c: SmolVLAConfig, max_text_tokens: int) -> dict[str, Any]:
    """What LeRobot 0.6's SmolVLAConfig has beside the features."""
    return {
        "max_state_dim": c.max_state_dim,
        "max_action_dim": c.max_action_dim,
        "num_steps": c.denoise_steps,
        "num_vlm_layers": c.depth,
        "self_attn_every_n_layers": c.self_attn_every,
        "expert_width_multiplier": c.expert_width / c.width,
        "resize_imgs_with_padding": [c.image_size, c.image_size],
        "tokenizer_max_length": max_text_tokens,
        "load_vlm_weights": False,
    }


def lerobot_steps(c: SmolVLAConfig, max_text_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """LeRobot's processor steps up to the network, by their registered names."""
    return [
        ("smolvla_new_line_processor", {}),
        ("tokenizer_processor", {"max_length": max_text_tokens, "padding": "longest", "tokenizer_name": TOKENIZER}),
        ("normalizer_processor", {}),
    ]
