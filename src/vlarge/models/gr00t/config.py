"""Sizes of GR00T N1.5, and their presets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from vlarge.contracts import InputError
from vlarge.models import presets
from vlarge.models.config import ModelConfig
from vlarge.models.gr00t.robots import free_number


@dataclass(frozen=True, kw_only=True)
class GrootConfig(presets.Sizes):
    """vl_*: blocks of the head over its features. dit_*: the denoiser.

    image_token: the id in a text that an image's tokens take the place of. pad_token: see attend_padding.
    head_width: between the denoiser and the actions, and within each robot's own layers.
    max_positions: rows of the position table in NVIDIA's checkpoints, of which only the first `action_horizon` are used
    and kept.
    attend_padding: the released code fills a batch up to its longest text and lets the head see the fill, so that its
    numbers depend on a sample's neighbours; True gives those numbers, to compare with them. Here nothing is filled up.
    """

    PADDING: ClassVar[str] = "none"
    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = (
        *presets.Sizes.MAY_BE_ZERO, "image_token", "pad_token", "vl_depth", "future_tokens"
    )  # fmt: skip

    image_token: int
    pad_token: int
    vl_depth: int
    vl_heads: int
    dit_depth: int
    dit_heads: int
    dit_head_dim: int
    head_width: int
    future_tokens: int
    num_embodiments: int
    max_positions: int = 1024
    time_buckets: int = 1000
    denoise_steps: int = 4
    attend_padding: bool = False

    @property
    def model_name(self) -> str:
        return "gr00t"

    @property
    def prompt(self) -> str:
        return "chat"

    @property
    def dit_width(self) -> int:
        return self.dit_heads * self.dit_head_dim

    @property
    def draw_tokens(self) -> int:
        """The state, and what the model adds of its own; they come before the actions."""
        return 1 + self.future_tokens

    @property
    def last_own_layer(self) -> int:
        """The last layer of the denoiser in which tokens see each other. From there on only actions are of use."""
        return self.dit_depth - 1 - self.dit_depth % 2

    def finds_images(self, ids_T: np.ndarray, num_images: int) -> bool:
        return int((ids_T == self.image_token).sum()) == num_images

    def embodiment_number(self, name: str, taken: Collection[int]) -> int:
        return free_number(self.num_embodiments, name, taken)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, unit in (
            ("image_size", self.image_size, self.patch),
            ("vision_width", self.vision_width, 4),
            ("vision_width", self.vision_width, self.vision_heads),
            ("heads", self.heads, self.kv_heads),
            ("width", self.width, self.vl_heads),
            ("width of the denoiser", self.dit_width, 2),
        ):
            if value % unit:
                raise InputError(f"model: {name} {value} is not a multiple of {unit}")
        for name, value, least, limit in (
            ("dit_depth", self.dit_depth, 2, 1_000),
            ("action_horizon", self.action_horizon, 1, self.max_positions),
            ("image_token", self.image_token, 0, self.vocab_size - 1),
            ("pad_token", self.pad_token, 0, self.vocab_size - 1),
        ):
            if not least <= value <= limit:
                raise InputError(f"model: {name} is {value}; it must be from {least} to {limit}")


PRESETS = {
    "tiny": GrootConfig(
        vocab_size=4373, width=128, depth=2, mlp=384, heads=4, kv_heads=2, head_dim=32,
        image_token=0xFC, pad_token=0,  # the image's mark of the byte tokenizer
        vision_width=128, vision_depth=2, vision_mlp=512, vision_heads=4, patch=16, image_size=96,
        vl_depth=1, vl_heads=4, dit_depth=4, dit_heads=4, dit_head_dim=32, head_width=128, future_tokens=4,
        num_embodiments=4, action_horizon=10, max_action_dim=0, max_state_dim=0,
    ),
    "n1.5-3b": GrootConfig(
        vocab_size=151_680, width=2048, depth=12, mlp=6144, heads=16, kv_heads=8, head_dim=128,
        image_token=151_669, pad_token=151_643,
        vision_width=1152, vision_depth=27, vision_mlp=4304, vision_heads=16, patch=14, image_size=224,
        vl_depth=4, vl_heads=32, dit_depth=16, dit_heads=32, dit_head_dim=48, head_width=1024, future_tokens=32,
        num_embodiments=32, action_horizon=16, max_action_dim=32, max_state_dim=64,
    ),
}  # fmt: skip


def resolve(model: ModelConfig, *, vocab_size: int, state_dim: int, action_dim: int) -> GrootConfig:
    """The preset with the recipe's changes, fitted to a tokenizer and a dataset.

    Raises InputError for an unknown preset, a tokenizer, a state or an action that is too large for the model.
    """
    sizes: GrootConfig = presets.chosen(PRESETS, model, vocab_size)
    own: dict[str, Any] = {"max_action_dim": action_dim, "max_state_dim": state_dim}
    sizes = replace(sizes, **{name: dim for name, dim in own.items() if not getattr(sizes, name)})
    sizes.check_dims(state_dim=state_dim, action_dim=action_dim)
    return sizes
