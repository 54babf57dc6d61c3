"""What LeRobot does to a batch before the policy sees it, and to actions after: its own steps only."""

from __future__ import annotations

from typing import Any

from lerobot.processor import PolicyAction, PolicyProcessorPipeline, make_default_pre_post_processors
from torch import Tensor

from lerobot_policy_vlarge.configuration_vlarge import VlargeConfig


def make_vlarge_pre_post_processors(
    config: VlargeConfig, dataset_stats: dict[str, dict[str, Tensor]] | None = None
) -> tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]],
    PolicyProcessorPipeline[PolicyAction, PolicyAction],
]:
    """Rename, add the batch dimension, move to the device, normalise; un-normalise and move to the CPU."""
    return make_default_pre_post_processors(config, dataset_stats, normalizer_device=config.device)
