"""What the sizes of every model come from: a preset with a recipe's changes, or a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from vlarge.contracts import InputError
from vlarge.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Sizes(ABC):
    """What every model has. width to head_dim: its language model, with kv_heads key heads for its query heads.

    max_action_dim, max_state_dim: columns of the projections; a dataset may have fewer, never more. A model that has no
    projection of states says 0.
    PADDING: how pictures become squares; one of `vlarge.data.transforms.resize.PADDINGS`.
    """

    PADDING: ClassVar[str] = "centre"
    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ("max_action_dim", "max_state_dim")

    vocab_size: int
    width: int
    depth: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vision_width: int
    vision_depth: int
    vision_mlp: int
    vision_heads: int
    patch: int
    image_size: int
    action_horizon: int
    max_action_dim: int
    max_state_dim: int

    def __post_init__(self) -> None:
        """Raises InputError for what is no number that such a size may be."""
        for each in fields(self):
            value, least = getattr(self, each.name), 0 if each.name in self.MAY_BE_ZERO else 1
            if each.type in ("int", int) and (type(value) is not int or value < least):
                raise InputError(f"{self.model_name}: {each.name} is {value!r}; it must be a whole number from {least}")

    @property
    @abstractmethod
    def model_name(self) -> str:
        """What a recipe calls the model."""

    @property
    @abstractmethod
    def prompt(self) -> str:
        """What the text holds; one of `vlarge.data.prompts.PROMPTS`."""

    @property
    def image_tokens(self) -> int:
        """Tokens of one image: its patches."""
        return (self.image_size // self.patch) ** 2

    @property
    def draw_tokens(self) -> int:
        """Tokens of a draw of noise beside its actions."""
        return 0

    def check_dims(self, *, state_dim: int, action_dim: int) -> None:
        """Raise InputError for more dimensions than the model takes."""
        if 0 < self.max_state_dim < state_dim:
            raise InputError(
                f"the dataset's states have {state_dim} dimensions, the model takes at most {self.max_state_dim}"
            )
        if action_dim > self.max_action_dim:
            raise InputError(
                f"the dataset's actions have {action_dim} dimensions, the model takes at most {self.max_action_dim}:"
                f" set model.max_action_dim to {action_dim} and train from scratch, or choose another action_key"
            )

    def finds_images(self, ids_T: np.ndarray, num_images: int) -> bool:
        """Whether a prompt has the marks that the model replaces by its images, where it needs any."""
        return True

    def embodiment_number(self, name: str, taken: Collection[int]) -> int:
        """Which of the weights that the model has for each robot are this one's: 0 where all share them.

        taken: numbers of other robots of the run. Raises InputError when none is left.
        """
        return 0


OF_WEIGHTS = ("image_size", "max_action_dim", "num_experts")  # what a recipe may change of a preset, and not of weights


def resized(sizes: Sizes, model: ModelConfig) -> Sizes:
    """A checkpoint's sizes with the recipe's horizon. Raises InputError for what its weights are not made for."""
    for name in OF_WEIGHTS:
        wanted, has = getattr(model, name), getattr(sizes, name, 0)
        if wanted and wanted != has:
            raise InputError(f"model.{name} is {wanted}, and the weights of model.init are made for {has}: leave it 0")
    return replace(sizes, action_horizon=model.action_horizon or sizes.action_horizon)


def chosen(presets: Mapping[str, Any], model: ModelConfig, vocab_size: int) -> Any:
    """The recipe's preset with its changes. Raises InputError for an unknown one, or one with too few tokens."""
    if model.preset not in presets:
        raise InputError(f"model.preset {model.preset!r} does not exist: choose one of {', '.join(presets)}")
    changes = {name: getattr(model, name) for name in ("action_horizon", *OF_WEIGHTS) if getattr(model, name)}
    if "num_experts" in changes and not hasattr(presets[model.preset], "num_experts"):
        raise InputError(
            f"model.num_experts is {model.num_experts}; {model.name} has no mixtures of experts: leave it 0"
        )
    sizes = replace(presets[model.preset], **changes)
    if vocab_size > sizes.vocab_size:
        raise InputError(f"the tokenizer has {vocab_size} tokens, preset {model.preset!r} takes {sizes.vocab_size}")
    return sizes


def stored(kind: type[Any], data: dict[str, Any]) -> Any:
    """Sizes from a checkpoint. Raises InputError for a key that this version does not know or misses."""
    try:
        return kind(**data)
    except (TypeError, InputError) as error:
        raise InputError(f"the checkpoint's model sizes do not fit this version of vlarge: {error}") from error
