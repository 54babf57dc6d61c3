"""How transformers names the weights of the towers and layers that policies are made of: beginnings, ours -> theirs.

And what sizes the shapes under those names tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from vlarge.contracts import InputError
from vlarge.models.language import LanguageConfig

VISION_BLOCK = {
    "norm1": "layer_norm1",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "norm2": "layer_norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
DECODER_LAYER = {
    "norm1": "input_layernorm",
    "key_value.k": "self_attn.k_proj",
    "key_value.v": "self_attn.v_proj",
    "query.q": "self_attn.q_proj",
    "query.o": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def vision_names(ours: str, theirs: str) -> dict[str, str]:
    """Of a `vision.VisionTower`: SigLIP's."""
    blocks = {f"{ours}blocks.#.{a}.": f"{theirs}encoder.layers.#.{b}." for a, b in VISION_BLOCK.items()}
    return blocks | {
        f"{ours}patch_embed.": f"{theirs}embeddings.patch_embedding.",
        f"{ours}positions": f"{theirs}embeddings.position_embedding.weight",
        f"{ours}norm.": f"{theirs}post_layernorm.",
    }


def decoder_names(ours: str, theirs: str) -> dict[str, str]:
    """Of numbered `language.DecoderLayer`s: Gemma's, Llama's and Qwen's."""
    return {f"{ours}#.{a}.": f"{theirs}#.{b}." for a, b in DECODER_LAYER.items()}


def beyond_keys(layer: str, c: LanguageConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what their layer has, and ours with `keys_only` has not."""
    heads = c.heads * c.head_dim
    shapes = {
        "query.q": (heads, c.width),
        "query.o": (c.width, heads),
        "norm2": (c.width,),
        "mlp.gate": (c.mlp, c.width),
        "mlp.up": (c.mlp, c.width),
        "mlp.down": (c.width, c.mlp),
    }
    return {f"{layer}{DECODER_LAYER[part]}.weight": shape for part, shape in shapes.items()}


def num_layers(names: Iterable[str], layers: str) -> int:
    """How many layers there are of which names go on with a number and a point."""
    found = (re.match(re.escape(layers) + r"(\d+)\.", name) for name in names)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def vision_sizes(tower: str, names: Iterable[str], shape: Callable[[str, int], tuple[int, ...]]) -> dict[str, int]:
    """Sizes of a SigLIP tower, but for its heads, which no shape tells. shape: of a weight by its name, and its length.

    Raises InputError for patches that make no square.
    """
    width, _, patch, _ = shape(f"{tower}embeddings.patch_embedding.weight", 4)
    num_patches, _ = shape(f"{tower}embeddings.position_embedding.weight", 2)
    return {
        "vision_width": width,
        "vision_depth": num_layers(names, f"{tower}encoder.layers."),
        "vision_mlp": shape(f"{tower}encoder.layers.0.mlp.fc1.weight", 2)[0],
        "patch": patch,
        "image_size": patch * side("patches of an image", num_patches),
    }


def side(what: str, number: int) -> int:
    """Of a square of so many. Raises InputError for a number that makes none."""
    if math.isqrt(number) ** 2 != number:
        raise InputError(f"the checkpoint has {number} {what}, which make no square")
    return math.isqrt(number)
