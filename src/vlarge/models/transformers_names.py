"""How transformers names the weights of the towers and layers that policies are made of: beginnings, ours -> theirs."""

from __future__ import annotations

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
