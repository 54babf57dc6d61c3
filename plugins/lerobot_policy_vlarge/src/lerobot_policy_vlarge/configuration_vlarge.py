"""What `--policy.type=vlarge` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig, CosineDecayWithWarmupSchedulerConfig

from vlarge.contracts import ACTION, STATE, InputError, check_ranges
from vlarge.models.config import ModelConfig


@PreTrainedConfig.register_subclass("vlarge")
@dataclass
class VlargeConfig(PreTrainedConfig):
    """model, preset: a name that `vlarge.models.registry` knows, and one of that model's presets.

    chunk_size: action steps of a chunk; n_action_steps: how many of them are executed before the next.
    image_size, max_action_dim: 0 keeps the preset's. freeze: parts that are not trained (vision, language, expert).
    init: weights to start from by LeRobot's names, such as those of its π0.5: a folder or hf://user/name.
    tokenizer: "bytes", or the path of a tokenizer.json.
    embodiment: the robot's name, for models that have weights for each.
    suffixes_per_prefix: noise and time draws per sample; they share one pass over images and text.
    dtype: "bfloat16" multiplies matrices in it; weights stay float32.

    Once they are read, `init` becomes "" and a tokenizer's path "stored": checkpoints hold weights and tokenizer.
    """

    model: str = "pi05"
    preset: str = "tiny"
    chunk_size: int = 50
    n_action_steps: int = 50
    image_size: int = 0
    max_action_dim: int = 0
    freeze: list[str] = field(default_factory=list)
    init: str = ""
    tokenizer: str = "bytes"
    max_text_tokens: int = 200
    embodiment: str = "robot"
    suffixes_per_prefix: int = 1
    dtype: str = "float32"
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "VISUAL": NormalizationMode.IDENTITY,
            "STATE": NormalizationMode.QUANTILES,
            "ACTION": NormalizationMode.QUANTILES,
        }
    )

    optimizer_lr: float = 2.5e-5  # these are openpi's, for fine-tuning; from scratch about 1e-3
    optimizer_betas: tuple[float, float] = (0.9, 0.95)
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 0.01
    optimizer_grad_clip_norm: float = 1.0
    scheduler_warmup_steps: int = 1_000  # both shrink in proportion where a run has fewer steps than the decay
    scheduler_decay_steps: int = 30_000
    scheduler_decay_lr: float = 2.5e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("policy", self.model_config)
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise InputError(f"policy.n_action_steps is {self.n_action_steps}, not one of 1 to {self.chunk_size}")
        if self.suffixes_per_prefix < 1:
            raise InputError(f"policy.suffixes_per_prefix is {self.suffixes_per_prefix}; it must be at least 1")
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"policy.dtype is {self.dtype!r}; use 'float32' or 'bfloat16'")
        if self.normalization_mapping.get("VISUAL", NormalizationMode.IDENTITY) is not NormalizationMode.IDENTITY:
            raise InputError("policy.normalization_mapping: VISUAL must be IDENTITY, the model scales pictures itself")
        if self.n_obs_steps != 1:
            raise InputError(f"policy.n_obs_steps is {self.n_obs_steps}; the models see one moment")

    @property
    def model_config(self) -> ModelConfig:
        """The same as the [model] table of a recipe."""
        return ModelConfig(
            name=self.model,
            preset=self.preset,
            action_horizon=self.chunk_size,
            image_size=self.image_size,
            max_action_dim=self.max_action_dim,
            freeze=tuple(self.freeze),
        )

    def validate_features(self) -> None:
        """Raise InputError unless there are a state and an action. Cameras may be any number."""
        for key, feature in ((STATE, self.robot_state_feature), (ACTION, self.action_feature)):
            if feature is None:
                raise InputError(f"the dataset or environment has no {key}, which the policy needs")

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=self.optimizer_grad_clip_norm,
        )

    def get_scheduler_preset(self) -> CosineDecayWithWarmupSchedulerConfig:
        return CosineDecayWithWarmupSchedulerConfig(
            num_warmup_steps=self.scheduler_warmup_steps,
            num_decay_steps=self.scheduler_decay_steps,
            peak_lr=self.optimizer_lr,
            decay_lr=self.scheduler_decay_lr,
        )

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        return None
