"""The [model] table of a recipe: which model, which preset, and what of the preset to change."""

from __future__ import annotations

from dataclasses import dataclass

from vlarge.contracts import setting


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """name: a model folder of `vlarge.models`; preset: one of that model's presets.

    attention: how attention is computed, "auto" or one of `vlarge.models.attention.BACKENDS`.
    action_horizon, image_size, max_action_dim: 0 keeps the preset's value; for max_action_dim the `tiny` preset takes
    as many as the dataset has. init: a checkpoint folder to start from, whose sizes take the preset's place; of them
    only action_horizon can be changed.
    num_experts: above 0, the action expert's feed-forward parts are mixtures of so many experts.
    freeze: parts that are not trained ("vision", "language", "expert"). lora_rank: above 0, the projections whose names
    fit lora_on (as files fit `*.txt`) keep their weights and learn a change of that rank, times lora_alpha / lora_rank
    (lora_alpha 0: times 1). Checkpoints have it added in.
    """

    name: str = "pi05"
    preset: str = "tiny"
    init: str = ""
    attention: str = "auto"
    action_horizon: int = setting(0, least=0, below=10_001)
    image_size: int = setting(0, least=0, below=2_049)
    max_action_dim: int = setting(0, least=0, below=10_001)
    num_experts: int = setting(0, least=0, below=1_025)
    freeze: tuple[str, ...] = ()
    lora_rank: int = setting(0, least=0, below=10_001)
    lora_alpha: float = setting(0.0, least=0)
    lora_on: tuple[str, ...] = ("*.q", "*.k", "*.v", "*.o", "*.gate", "*.up", "*.down")
