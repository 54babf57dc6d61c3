"""The [run], [train] and [track] tables of a recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """dir: the run directory. seed: everything random in the run follows from it."""

    dir: str = "runs/run"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """batch_size is global: samples per optimizer step over all processes. Learning rates are never scaled for you.

    dtype: "bf16" runs matrix products in bfloat16 with fp32 master weights, "fp32" everything in fp32.
    suffixes_per_prefix: noise and time draws per sample and step; they share one pass over images and text.
    max_time_s: above 0, `steps` is lowered at the end of the warm-up to what fits in that time at the speed measured.
    save_every: steps between checkpoints (0: only at the end); keep_last: checkpoints kept.
    """

    steps: int = 1000
    batch_size: int = 32
    dtype: str = "bf16"
    device: str = "auto"
    lr: float = 1e-3
    lr_min: float = 1e-5
    warmup_steps: int = 50
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    ema_decay: float = 0.99
    suffixes_per_prefix: int = 1
    max_time_s: float = 0.0
    save_every: int = 500
    keep_last: int = 2
    log_every: int = 10
    num_threads: int = 0


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """tensorboard: also write TensorBoard event files. steps.jsonl is always written."""

    tensorboard: bool = True
