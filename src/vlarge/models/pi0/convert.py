"""π0 and π0.5 weights by LeRobot's names (which openpi's PyTorch names share) ↔ ours: strict, by one table.

What the reference stores and never uses is not part of our model: both language heads, all of the last prefix layer but
its keys and values, the prefix's final norm, the gate of π0.5's final norm. Reading drops it; writing puts zeros there
(the head repeats the embedding), so that LeRobot's strict loading is content.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlarge.models.naming import Naming
from vlarge.models.pi0.config import Pi0Config
from vlarge.models.pi0.model import language_config
from vlarge.models.transformers_names import beyond_keys, decoder_names, vision_names

ROOT = "model."
VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
LANGUAGE = "paligemma_with_expert.paligemma.model.language_model."
EXPERT = "paligemma_with_expert.gemma_expert.model."

# ours -> LeRobot's
TABLE = {
    **vision_names("vision.", VISION),
    "projector.": "paligemma_with_expert.paligemma.model.multi_modal_projector.linear.",
    "embed.": LANGUAGE + "embed_tokens.",
    **decoder_names("prefix_layers.", LANGUAGE + "layers."),
    **decoder_names("expert_layers.", EXPERT + "layers."),
    "expert_layers.#.mlp.": EXPERT + "layers.#.mlp.",  # of mixtures, which only we have
    "expert_norm.": EXPERT + "norm.",
    "action_in.": "action_in_proj.",
    "action_out.": "action_out_proj.",
}

PI05_TABLE = TABLE | {"time_in.": "time_mlp_in.", "time_out.": "time_mlp_out."}
PI0_TABLE = TABLE | {
    "state_in.": "state_proj.",
    "time_in.": "action_time_mlp_in.",
    "time_out.": "action_time_mlp_out.",
}
HEADS = ("paligemma_with_expert.paligemma.lm_head.weight", "paligemma_with_expert.gemma_expert.lm_head.weight")


def from_lerobot(theirs: dict[str, Tensor], ours: dict[str, Tensor], c: Pi0Config) -> dict[str, Tensor]:
    """Our state dict, filled from LeRobot's or openpi's. `ours` gives names and shapes (meta tensors do).

    Raises one InputError that lists every missing, unexpected and mis-shaped key.
    """
    rooted = {key if key.startswith(ROOT) else ROOT + key: value for key, value in theirs.items()}
    return naming(c).read(rooted, ours)


def to_lerobot(ours: dict[str, Tensor], c: Pi0Config) -> dict[str, Tensor]:
    """The full state dict that LeRobot 0.6.1's π0 or π0.5 loads strictly."""
    return naming(c).write(ours)


def naming(c: Pi0Config) -> Naming:
    """LeRobot's names for a model of these sizes."""

    def to_ours(name: str, value: Tensor) -> Tensor:
        if name == "vision.patch_embed.weight":
            return value.flatten(1)
        if name.startswith("expert_norm.") and not c.has_state_token:
            return value[: len(value) // 3 * 2]
        return value

    def to_theirs(name: str, value: Tensor) -> Tensor:
        if name == "vision.patch_embed.weight":
            return value.unflatten(1, (3, c.patch, c.patch))
        if name.startswith("expert_norm.") and not c.has_state_token:
            return torch.cat((value, torch.zeros_like(value[: len(value) // 2])))
        return value

    table = {ours: ROOT + theirs for ours, theirs in (PI0_TABLE if c.has_state_token else PI05_TABLE).items()}
    copies = {ROOT + HEADS[0]: ROOT + LANGUAGE + "embed_tokens.weight"}
    return Naming(table, unused_shapes(c), copies, to_ours, to_theirs)


def unused_shapes(c: Pi0Config) -> dict[str, tuple[int, ...]]:
    """What LeRobot's checkpoints hold and no output depends on, beside the copy of the embeddings."""
    unused = beyond_keys(f"{ROOT}{LANGUAGE}layers.{c.depth - 1}.", language_config(c, c.width, c.mlp))
    return unused | {f"{ROOT}{LANGUAGE}norm.weight": (c.width,), ROOT + HEADS[1]: (c.vocab_size, c.expert_width)}
