"""Sizes of SmolVLA, and its presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlarge.contracts import InputError
from vlarge.models import presets
from vlarge.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(presets.Sizes):
    """width, mlp: the language model. expert_*: the action expert. Both have the same heads; kv_heads divides them.

    self_attn_every: of so many layers of the expert, the first sees actions beside what comes before them; the others
    see only that. scale_factor: side, in patches, of the square of an image that becomes one token.
    """

    PADDING: ClassVar[str] = "corner"

    expert_width: int
    expert_mlp: int
    scale_factor: int
    self_attn_every: int = 2
    denoise_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, of, divisor in (
            ("image_size", self.image_size, "scale_factor patches", self.patch * self.scale_factor),
            ("heads", self.heads, "kv_heads", self.kv_heads),
            ("vision_width", self.vision_width, "vision_heads", self.vision_heads),
            ("vision_width", self.vision_width, "the 4 parts of a position", 4),
            ("expert_width", self.expert_width, "the sine and cosine of the time", 2),
        ):
            if value % divisor:
                raise InputError(f"model.{name} {value} is not a multiple of {divisor} ({of})")

    @property
    def model_name(self) -> str:
        return "smolvla"

    @property
    def prompt(self) -> str:
        return "instruction"

    @property
    def image_tokens(self) -> int:
        return (self.image_size // self.patch // self.scale_factor) ** 2

    def is_joint(self, layer: int) -> bool:
        """Whether the actions see each other in this layer of the expert."""
        return layer % self.self_attn_every == 0


PRESETS = {
    "tiny": SmolVLAConfig(
        vocab_size=4373, width=128, depth=4, mlp=384, heads=4, kv_heads=2, head_dim=32, expert_width=96, expert_mlp=256,
        vision_width=128, vision_depth=2, vision_mlp=512, vision_heads=4, patch=16, image_size=96, scale_factor=2,
        action_horizon=10, max_action_dim=0, max_state_dim=0, denoise_steps=5,
    ),
    # SmolVLM2-500M, the first half of its language layers
    "base": SmolVLAConfig(
        vocab_size=49_280, width=960, depth=16, mlp=2560, heads=15, kv_heads=5, head_dim=64, expert_width=720,
        expert_mlp=2048, vision_width=768, vision_depth=12, vision_mlp=3072, vision_heads=12, patch=16, image_size=512,
        scale_factor=4, action_horizon=50, max_action_dim=32, max_state_dim=32,
    ),
}  # fmt: skip


def resolve(model: ModelConfig, *, vocab_size: int, state_dim: int, action_dim: int) -> SmolVLAConfig:
    """The preset with the recipe's changes, fitted to a tokenizer and a dataset.

    Raises InputError for an unknown preset, a tokenizer, a state or an action that is too large for the model.
    """
    sizes: SmolVLAConfig = presets.chosen(PRESETS, model, vocab_size)
    sizes = replace(
        sizes,
        max_action_dim=sizes.max_action_dim or action_dim,
        max_state_dim=sizes.max_state_dim or state_dim,
    )
    sizes.check_dims(state_dim=state_dim, action_dim=action_dim)
    return sizes
