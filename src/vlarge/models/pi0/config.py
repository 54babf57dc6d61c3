"""Sizes of π0 and π0.5, and their presets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

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

    expert_width: int
    expert_mlp: int
    max_state_dim: int = 0
    denoise_steps: int = 10
    num_experts: int = 0
    experts_per_token: int = 2

    @property
    def has_state_token(self) -> bool:
        """Whether this is π0."""
        return self.max_state_dim > 0

    def __post_init__(self) -> None:
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
        action_horizon=10, max_action_dim=0, denoise_steps=5,
    ),
    "mid": Pi0Config(
        vocab_size=8192, width=512, depth=6, mlp=2048, heads=8, kv_heads=1, head_dim=64,
        expert_width=256, expert_mlp=1024,
        vision_width=256, vision_depth=6, vision_mlp=1024, vision_heads=4, patch=14, image_size=224,
        action_horizon=50, max_action_dim=32,
    ),
    "base": Pi0Config(
        vocab_size=257_152, width=2048, depth=18, mlp=16_384, heads=8, kv_heads=1, head_dim=256, expert_width=1024,
        expert_mlp=4096, vision_width=1152, vision_depth=27, vision_mlp=4304, vision_heads=16, patch=14, image_size=224,
        action_horizon=50, max_action_dim=32,
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
    check_dims(sizes, state_dim=state_dim, action_dim=action_dim)
    return sizes


def prompt(sizes: Pi0Config) -> str:
    """What the text holds; see `vlarge.data.prompts.PROMPTS`."""
    return "task" if sizes.has_state_token else "task_and_state"


def padding(sizes: Pi0Config) -> str:
    """How images become squares; see `vlarge.data.transforms.resize.PADDINGS`."""
    return "centre"


def embodiment_number(sizes: Pi0Config, name: str, taken: Collection[int]) -> int:
    """All robots share all weights."""
    return 0


def image_tokens(sizes: Pi0Config) -> int:
    """Tokens of one image: its patches."""
    return (sizes.image_size // sizes.patch) ** 2


def check_dims(sizes: Pi0Config, *, state_dim: int, action_dim: int) -> None:
    """Raise InputError for more dimensions than the model takes."""
    if sizes.has_state_token:
        presets.check_state(state_dim, sizes.max_state_dim)
    presets.check_action(action_dim, sizes.max_action_dim)


def read_sizes(data: dict[str, Any]) -> Pi0Config:
    """Sizes stored in a checkpoint. Raises InputError for a key that this version does not know or misses."""
    sizes: Pi0Config = presets.stored(Pi0Config, data)
    return sizes
