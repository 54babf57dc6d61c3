"""SmolVLA weights by LeRobot's names ↔ ours: strict, by one table.

What the reference stores and never uses is not part of our model: the language head (which is not tied to the
embeddings), all of the last language layer but its keys and values, the language model's final norm. Reading drops it;
writing puts zeros there, so that LeRobot's strict loading is content. Older checkpoints also hold statistics of their
datasets, which are no part of a network (LeRobot moves them to its processors): reading drops them too.
"""

from __future__ import annotations

import re

from torch import Tensor

from vlarge.models.naming import Naming
from vlarge.models.smolvla.config import SmolVLAConfig
from vlarge.models.smolvla.model import language_config
from vlarge.models.transformers_names import beyond_keys, decoder_names, vision_names

VLM = "model.vlm_with_expert.vlm."
VISION = VLM + "model.vision_model."
CONNECTOR = VLM + "model.connector.modality_projection.proj."
TEXT = VLM + "model.text_model."
EXPERT = "model.vlm_with_expert.lm_expert."
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
