"""Sizes of π0 and π0.5, and their presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlarge.contracts import InputError
from vlarge.models import presets
from vlarge.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Pi0Config(presets.Sizes):
    """width, mlp: the prefix transformer. expert_*: the action expert. Both have the same heads; kv_heads divides them.

    max_state_dim: π0 reads the state as a token of its own, projected from so many columns; 0: π0.5, whose prompt has
    it in words.
    num_experts: above 0, the action expert's feed-forward parts are mixtures of so many, experts_per_token for a token.
    """

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = (*presets.Sizes.MAY_BE_ZERO, "num_experts")

    expert_width: int
    expert_mlp: int
    denoise_steps: int = 10
    num_experts: int = 0
    experts_per_token: int = 2

    @property
    def has_state_token(self) -> bool:
        """Whether this is π0."""
        return self.max_state_dim > 0

    @property
    def model_name(self) -> str:
        return "pi0" if self.has_state_token else "pi05"

    @property
    def prompt(self) -> str:
        return "task" if self.has_state_token else "task_and_state"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch:
            raise InputError(f"model.image_size {self.image_size} is not a multiple of the patch size {self.patch}")
        if self.vision_width % 4:
            raise InputError(f"model.vision_width {self.vision_width} is not a multiple of 4")
        if self.heads % self.kv_heads:
            raise InputError(f"model has {self.heads} query heads, not a multiple of its {self.kv_heads} key heads")
        if 0 < self.num_experts < self.experts_per_token:
            raise InputError(
                f"model.num_experts {self.num_experts} is below the {self.experts_per_token} of each token"
            )


MAX_STATE_DIM = 32
PRESETS = {
    "tiny": Pi0Config(
        vocab_size=4373, width=128, depth=2, mlp=384, heads=4, kv_heads=1, head_dim=32,
        expert_width=128, expert_mlp=384,
        vision_width=128, vision_depth=2, vision_mlp=512, vision_heads=4, patch=16, image_size=96,
        action_horizon=10, max_action_dim=0, max_state_dim=0, denoise_steps=5,
    ),
    "mid": Pi0Config(
        vocab_size=8192, width=512, depth=6, mlp=2048, heads=8, kv_heads=1, head_dim=64,
        expert_width=256, expert_mlp=1024,
        vision_width=256, vision_depth=6, vision_mlp=1024, vision_heads=4, patch=14, image_size=224,
        action_horizon=50, max_action_dim=32, max_state_dim=0,
    ),
    "base": Pi0Config(
        vocab_size=257_152, width=2048, depth=18, mlp=16_384, heads=8, kv_heads=1, head_dim=256, expert_width=1024,
        expert_mlp=4096, vision_width=1152, vision_depth=27, vision_mlp=4304, vision_heads=16, patch=14, image_size=224,
        action_horizon=50, max_action_dim=32, max_state_dim=0,
    ),
}  # fmt: skip


def resolve(model: ModelConfig, *, vocab_size: int, state_dim: int, action_dim: int) -> Pi0Config:
    """The preset with the recipe's changes, fitted to a tokenizer and a dataset.

    Raises InputError for an unknown preset, a tokenizer, a state or an action that is too large for the model.
    """
    sizes: Pi0Config = presets.chosen(PRESETS, model, vocab_size)
    has_own_dims = not sizes.max_action_dim
    if has_own_dims:
        sizes = replace(sizes, max_action_dim=action_dim)
    if model.name == "pi0":
        sizes = replace(sizes, max_state_dim=state_dim if has_own_dims else MAX_STATE_DIM)
    sizes.check_dims(state_dim=state_dim, action_dim=action_dim)
    return sizes
