"""DeepSpeed imported and started for a stage of ZeRO, without its banners and without what it would compile."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from vlarge.models.adapt import by_decay
from vlarge.train.config import TrainConfig

BUCKET = 50_000_000  # values that are reduced or gathered at a time; DeepSpeed's own 500 million take 2 GB more
PERSISTENT = (
    100_000  # a weight of fewer values stays whole on every process: gathering it would take longer than its use
)


def start(stage: nn.Module, network: nn.Module, zero_stage: int, c: TrainConfig, device: torch.device) -> Any:
    """DeepSpeed's engine around a stage that holds the network. All processes start it at once.

    Weights are those of the first process from here on.
    """
    deepspeed = load(device.type)
    optimizer = torch.optim.AdamW(_groups(network, c), lr=c.lr, betas=c.betas, fused=True)
    runner, *_ = deepspeed.initialize(
        model=stage, optimizer=optimizer, config=settings(network, zero_stage, c), dist_init_required=False
    )
    return runner


def load(device_type: str) -> ModuleType:
    """Import DeepSpeed for a kind of device; its log goes to stderr."""
    os.environ.setdefault("DS_ACCELERATOR", device_type)  # which it reads when it is imported
    with _hidden("mlflow"):
        import deepspeed
    for handler in deepspeed.utils.logger.handlers:
        handler.setStream(sys.stderr)
    # Unasked, it would try the compiler for every kernel that it has, and compile a reduction that inference uses.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def settings(network: nn.Module, zero_stage: int, c: TrainConfig) -> dict[str, Any]:
    """DeepSpeed's own configuration. Weights are fp32 for it; what runs in bfloat16 is the stage's affair."""
    num_values = sum(parameter.numel() for parameter in network.parameters())
    return {
        "train_micro_batch_size_per_gpu": 1,  # it only counts with it
        "gradient_clipping": c.clip_norm,
        "zero_optimization": {
            "stage": zero_stage,
            "reduce_bucket_size": min(BUCKET, num_values),  # there is a buffer of that size
            "allgather_bucket_size": BUCKET,
            "stage3_prefetch_bucket_size": BUCKET,
            "stage3_param_persistence_threshold": PERSISTENT,
            # Keeps a weight's fp32 for the backward pass and not its bfloat16, which is not divided.
            "memory_efficient_linear": c.dtype == "bf16",
        },
    }


def _groups(network: nn.Module, c: TrainConfig) -> list[dict[str, Any]]:
    decays = zip(by_decay(network), (c.weight_decay, 0.0), strict=True)
    return [{"params": parameters, "weight_decay": decay} for parameters, decay in decays if parameters]


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Where a package is not imported yet, it is not there for DeepSpeed, which has no use for it here.

    MLflow takes seconds to import, and writes an id of this machine into the home directory.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # what makes an import fail
    try:
        yield
    finally:
        del sys.modules[package]
