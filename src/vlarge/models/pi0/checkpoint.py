"""What LeRobot's and openpi's checkpoint folders say beside π0's and π0.5's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlarge.contracts import InputError
from vlarge.models.pi0.config import PRESETS, Pi0Config
from vlarge.models.pi0.convert import EXPERT, HEADS, LANGUAGE, PI0_TABLE, ROOT, VISION
from vlarge.models.transformers_names import num_layers, vision_sizes

KV_HEADS = 1  # of every variant there is
TOKENIZER = "google/paligemma-3b-pt-224"
Shapes = Mapping[str, tuple[int, ...]]


def foreign_sizes(config: Mapping[str, Any], shapes: Shapes) -> Pi0Config:
    """The sizes of a checkpoint, from its weights' shapes and what its config.json says beside them.

    Raises InputError where a weight is missing.
    """
    rooted = {name if name.startswith(ROOT) else ROOT + name: shape for name, shape in shapes.items()}

    def shape(name: str) -> tuple[int, ...]:
        if name not in rooted:
            raise InputError(f"the checkpoint has no weight {name}: it is not of π0 or π0.5")
        return rooted[name]

    base, layers, expert = PRESETS["base"], ROOT + LANGUAGE + "layers.", ROOT + EXPERT + "layers.0."
    layer = layers + "0."
    head_dim = shape(layer + "self_attn.k_proj.weight")[0] // KV_HEADS
    embed, head = ROOT + LANGUAGE + "embed_tokens.weight", ROOT + HEADS[0]
    state = ROOT + PI0_TABLE["state_in."] + "weight"
    return Pi0Config(
        vocab_size=shape(embed if embed in rooted else head)[0],
        width=shape(layer + "self_attn.k_proj.weight")[1],
        depth=num_layers(rooted, layers),
        mlp=shape(layer + "mlp.gate_proj.weight")[0],
        heads=shape(layer + "self_attn.q_proj.weight")[0] // head_dim,
        kv_heads=KV_HEADS,
        head_dim=head_dim,
        expert_width=shape(expert + "self_attn.k_proj.weight")[1],
        expert_mlp=shape(expert + "mlp.gate_proj.weight")[0],
        **vision_sizes(ROOT + VISION, rooted, lambda name, _: shape(name)),
        vision_heads=int(config.get("vision_heads", base.vision_heads)),
        action_horizon=int(config.get("chunk_size", config.get("action_horizon", base.action_horizon))),
        max_action_dim=shape(ROOT + PI0_TABLE["action_in."] + "weight")[1],
        max_state_dim=shape(state)[1] if state in rooted else 0,
        denoise_steps=int(config.get("num_inference_steps", base.denoise_steps)),
    )


def lerobot_config(c: Pi0Config, max_text_tokens: int) -> dict[str, Any]:
    """What LeRobot 0.6's PI0Config or PI05Config has beside the features. Its variants have the sizes of `base`."""
    return {
        "dtype": "float32",
        "max_state_dim": c.max_state_dim or 32,
        "max_action_dim": c.max_action_dim,
        "num_inference_steps": c.denoise_steps,
        "image_resolution": [c.image_size, c.image_size],
        "tokenizer_max_length": max_text_tokens,
    }


def lerobot_steps(c: Pi0Config, max_text_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """LeRobot's processor steps up to the network, by their registered names. π0.5 has its state in the prompt."""
    tokenizer = {"max_length": max_text_tokens, "padding": "max_length", "tokenizer_name": TOKENIZER}
    if c.has_state_token:
        return [("pi0_new_line_processor", {}), ("tokenizer_processor", tokenizer), ("normalizer_processor", {})]
    prompt = "pi05_prepare_state_tokenizer_processor_step"
    return [("normalizer_processor", {}), (prompt, {}), ("tokenizer_processor", tokenizer)]
