"""The [run], [train] and [track] tables of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from vlarge.contracts import setting


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """dir: the run directory. seed: everything random in the run follows from it."""

    dir: str = "runs/run"
    seed: int = setting(0, least=0)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """batch_size is global: samples per optimizer step over all processes. Learning rates are never scaled for you.

    dtype: "bf16" runs matrix products in bfloat16 with fp32 master weights, "fp32" everything in fp32; "auto" is bf16
    where the hardware is fast at it.
    micro_batch_tokens: above 0, a process works through its share of a step in micro-batches of at most so many tokens
    (images, text, and the action steps of every draw), which bounds memory and changes no result.
    recompute: keep the inputs of layers only and run them again in the backward pass: less memory, a third more work.
    compile: compile what treats each token by itself; the first steps then take a minute or so.
    suffixes_per_prefix: noise and time draws per sample and step; they share one pass over images and text.
    loss_on_padding: count the model's action columns that a robot does not have, as openpi does; only to compare with
    its numbers.
    balance_weight: of the loss that spreads tokens evenly over a mixture of experts; its mean is 1 when they are.
    max_time_s: above 0, `steps` is lowered at the end of the warm-up to what fits in that time at the speed measured.
    save_every: steps between checkpoints (0: only at the end); keep_last: checkpoints kept.
    """

    steps: int = setting(1000, least=1)
    batch_size: int = setting(32, least=1)
    micro_batch_tokens: int = setting(0, least=0)
    dtype: str = "auto"
    device: str = "auto"
    lr: float = setting(1e-3, above=0, below=1)
    lr_min: float = setting(1e-5, least=0, below=1)
    warmup_steps: int = setting(50, least=0)
    weight_decay: float = setting(0.01, least=0)
    betas: tuple[float, float] = setting((0.9, 0.95), least=0, below=1)
    clip_norm: float = setting(1.0, above=0)
    ema_decay: float = setting(0.99, least=0, below=1)
    recompute: bool = False
    compile: bool = False
    suffixes_per_prefix: int = setting(1, least=1)
    loss_on_padding: bool = False
    balance_weight: float = setting(0.01, least=0)
    max_time_s: float = setting(0.0, least=0)
    save_every: int = setting(500, least=0)
    keep_last: int = setting(2, least=0)
    log_every: int = setting(10, least=1)
    num_threads: int = setting(0, least=0)


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """tensorboard: also write TensorBoard event files. steps.jsonl is always written."""

    tensorboard: bool = True
