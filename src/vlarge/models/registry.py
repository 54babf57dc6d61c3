"""Finds a model by name. A new model is a new folder here, or an entry point "vlarge.models" of a distribution."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from torch import Tensor

import vlarge.models
from vlarge.contracts import InputError, PackedBatch
from vlarge.models.config import ModelConfig
from vlarge.models.division import Division
from vlarge.models.network import PolicyNetwork
from vlarge.models.presets import Sizes


class Family(Protocol):
    """What a model folder's `__init__` offers. Config: the folder's own frozen dataclass."""

    NAMES: tuple[str, ...]
    Config: type[Sizes]

    def resolve(self, model: ModelConfig, *, vocab_size: int, state_dim: int, action_dim: int) -> Sizes:
        """The sizes that a recipe, a tokenizer and a dataset ask for. Raises InputError."""

    def build(self, sizes: Any) -> PolicyNetwork[Any, Any]:
        """A new network."""

    def division(self, sizes: Any) -> Division:
        """How such a network may be divided over processes."""

    def forward_flops(self, sizes: Any, batch: PackedBatch, num_draws: int) -> float: ...

    def foreign_sizes(self, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
        """The sizes of another project's checkpoint: its config.json and its weights' shapes. Raises InputError."""

    def lerobot_config(self, sizes: Any, max_text_tokens: int) -> dict[str, Any]:
        """What LeRobot's configuration of this model has beside its features."""

    def lerobot_steps(self, sizes: Any, max_text_tokens: int) -> list[tuple[str, dict[str, Any]]]:
        """LeRobot's processor steps between batching and the network, by their names, the normalizer's left empty."""

    def from_lerobot(self, theirs: dict[str, Tensor], ours: dict[str, Tensor], sizes: Any) -> dict[str, Tensor]: ...

    def to_lerobot(self, ours: dict[str, Tensor], sizes: Any) -> dict[str, Tensor]: ...


def find_family(name: str) -> Family:
    """The model folder that lists `name`. Raises InputError with the names there are."""
    known: list[str] = []
    for family in _families():
        if name in family.NAMES:
            return family
        known += family.NAMES
    raise InputError(f"there is no model {name!r}; known are {', '.join(sorted(known))}")


def _families() -> list[Any]:
    folders = [m.name for m in pkgutil.iter_modules(vlarge.models.__path__) if m.ispkg]
    ours = [importlib.import_module(f"vlarge.models.{name}") for name in folders]
    return ours + [point.load() for point in entry_points(group="vlarge.models")]
