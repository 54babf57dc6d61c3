"""The [run], [train], [health] and [track] tables of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from vlarge.contracts import InputError, setting


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
    (images, text, and the action steps of every draw), which bounds memory and changes no result; "auto": the most
    that memory holds, found by trying before the first step.
    recompute: "layers" keeps the inputs of layers only and runs them again in the backward pass: less memory, a third
    more work; "selective" keeps the results of matrix products too, and runs the rest again, which costs little; or
    "none".
    compile: compile what treats each token by itself; the first steps then take a minute or so.
    suffixes_per_prefix: noise and time draws per sample and step; they share one pass over images and text.
    loss_on_padding: count the model's action columns that a robot does not have, as openpi does; only to compare with
    its numbers.
    balance_weight: of the loss that spreads tokens evenly over a mixture of experts; its mean is 1 when they are.
    max_time_s: above 0, `steps` is lowered at the end of the warm-up to what fits in that time at the speed measured.
    save_every: steps between checkpoints (0: only at the end); keep_last: checkpoints kept.
    log_every: steps between the lines that are printed where there is no terminal.
    """

    steps: int = setting(1000, least=1)
    batch_size: int = setting(32, least=1)
    micro_batch_tokens: int | Literal["auto"] = setting(0, least=0)
    dtype: str = "auto"
    device: str = "auto"
    lr: float = setting(1e-3, above=0, below=1)
    lr_min: float = setting(1e-5, least=0, below=1)
    warmup_steps: int = setting(50, least=0)
    weight_decay: float = setting(0.01, least=0)
    betas: tuple[float, float] = setting((0.9, 0.95), least=0, below=1)
    clip_norm: float = setting(1.0, above=0)
    ema_decay: float = setting(0.99, least=0, below=1)
    recompute: str = "none"
    compile: bool = False
    suffixes_per_prefix: int = setting(1, least=1)
    loss_on_padding: bool = False
    balance_weight: float = setting(0.01, least=0)
    max_time_s: float = setting(0.0, least=0)
    save_every: int = setting(500, least=0)
    keep_last: int = setting(2, least=0)
    log_every: int = setting(10, least=1)
    num_threads: int = setting(0, least=0)

    @property
    def budget_tokens(self) -> int:
        """`micro_batch_tokens`; 0, no bound, as long as it is to be found."""
        return 0 if isinstance(self.micro_batch_tokens, str) else self.micro_batch_tokens


AXES = ("pp", "dp_replicate", "dp_shard", "ep", "cp", "tp")  # from the slowest links to the fastest
DATA_AXES = ("dp_replicate", "dp_shard", "ep")  # along which processes have different samples
SCHEDULES = ("1f1b", "interleaved")
TORCH, DEEPSPEED = ENGINES = ("torch", "deepspeed")
ZERO_STAGES = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How processes share the work: the product of all degrees is their number. 0: as many as the others leave.

    pp: stages of layers, one after the other. dp_replicate: copies of everything, each with its own samples.
    dp_shard: a copy is divided over so many, each with its own samples (FSDP). ep: experts are divided over so many,
    each with its own samples; all other weights are divided over dp_shard and ep together. cp: the tokens of a sample
    are divided over so many, which exchange heads for attention. tp: projections are divided by columns and rows, and
    tokens between them.
    schedule: order of the micro-batches of pipeline stages, "1f1b" or "interleaved"; the latter has
    stages_per_process of them on each process.
    micro_batches: a step of a pipeline has so many, or a multiple of it where train.micro_batch_tokens asks for more;
    0: twice as many as stages.
    engine: "torch", or "deepspeed" for its ZeRO, which has the sample axis only: dp_replicate counts its processes, and
    over all of them zero_stage 1 divides the optimizer's state, 2 the gradients too, 3 the weights too.
    """

    pp: int = setting(1, least=1)
    dp_replicate: int = setting(0, least=0)
    dp_shard: int = setting(1, least=0)
    ep: int = setting(1, least=1)
    cp: int = setting(1, least=1)
    tp: int = setting(1, least=1)
    schedule: str = "1f1b"
    stages_per_process: int = setting(1, least=1)
    micro_batches: int = setting(0, least=0)
    engine: str = TORCH
    zero_stage: int = setting(0, least=0)

    def check(self) -> None:
        """Raise InputError for settings that do not go together, whatever the number of processes."""
        self._check_schedule()
        self._check_engine()

    def resolve(self, num_processes: int) -> ParallelConfig:
        """With every degree stated. Raises InputError where they do not multiply to the number of processes."""
        self.check()
        # dp_replicate takes what is left, unless dp_shard is to.
        open_axis = "dp_shard" if not self.dp_shard else "" if self.dp_replicate else "dp_replicate"
        known = replace(self, dp_replicate=self.dp_replicate or 1, dp_shard=self.dp_shard or 1)
        rest, left_over = divmod(num_processes, known.num_processes)
        if open_axis and not left_over:
            known = replace(known, dp_shard=rest) if open_axis == "dp_shard" else replace(known, dp_replicate=rest)
        if left_over or known.num_processes != num_processes:
            made, multiple = known.num_processes, "a multiple of " if open_axis else ""
            raise InputError(
                f"[parallel] {known.describe()} makes {made} processes, and there are {num_processes}: change a degree,"
                f" or start {multiple}{made} (torchrun --nproc-per-node {made})"
            )
        return known

    def check_batch(self, batch_size: int) -> None:
        """Raise InputError where a global batch has too few samples to share out. Every degree is stated."""
        if batch_size < self.num_data:
            whose = "processes" if self.num_data == self.num_processes else "groups of processes"
            raise InputError(
                f"train.batch_size is {batch_size}, which {self.num_data} {whose} cannot share: make it {self.num_data}"
                " or more, or start fewer"
            )

    def _check_schedule(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(f"parallel.schedule is {self.schedule!r}; use {' or '.join(map(repr, SCHEDULES))}")
        if (self.stages_per_process > 1) != (self.schedule == "interleaved"):
            raise InputError(
                f"parallel.stages_per_process is {self.stages_per_process} and parallel.schedule {self.schedule!r}:"
                " above 1 goes with 'interleaved', and 1 with '1f1b'"
            )
        if self.pp == 1 and (self.stages_per_process > 1 or self.micro_batches):
            raise InputError("parallel.stages_per_process and parallel.micro_batches are a pipeline's: set parallel.pp")
        if self.num_micro % self.num_stages:
            raise InputError(
                f"parallel.micro_batches is {self.micro_batches}: make it a multiple of the {self.num_stages} stages"
            )

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"parallel.engine is {self.engine!r}; use {' or '.join(map(repr, ENGINES))}")
        if self.engine == TORCH:
            if self.zero_stage:
                raise InputError(
                    f'parallel.zero_stage is {self.zero_stage}, and is DeepSpeed\'s: set parallel.engine = "deepspeed",'
                    " or parallel.dp_shard to divide weights with torch"
                )
            return
        if self.zero_stage not in ZERO_STAGES:
            raise InputError(
                f'parallel.zero_stage is {self.zero_stage}: set it to 1, 2 or 3 with parallel.engine = "deepspeed"'
            )
        for axis in AXES:
            if axis != "dp_replicate" and (degree := getattr(self, axis)) != 1:
                raise InputError(
                    f'parallel.{axis} is {degree}, an axis that parallel.engine = "deepspeed" has not: leave it at 1,'
                    ' or use parallel.engine = "torch"'
                )

    @property
    def num_processes(self) -> int:
        """Product of all degrees."""
        return prod(getattr(self, axis) for axis in AXES)

    @property
    def num_data(self) -> int:
        """How many ways a global batch is shared out."""
        return prod(getattr(self, axis) for axis in DATA_AXES)

    @property
    def num_stages(self) -> int:
        return self.pp * self.stages_per_process

    @property
    def num_micro(self) -> int:
        """A step has so many micro-batches, or a multiple of it; 1 without a pipeline."""
        return 1 if self.pp == 1 else self.micro_batches or 2 * self.num_stages

    def describe(self) -> str:
        """Every degree: "pp 1 x dp_replicate 2 x …"."""
        return " x ".join(f"{axis} {getattr(self, axis)}" for axis in AXES)


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """How long is late, and what is done about it.

    beat_s: how often each process says what it is doing, and the main process looks. stall_s: a section that takes so
    long, and far longer than usual, is reported with its rank; so is a process that says nothing for so long.
    balance_every: steps between comparisons of all ranks' times; 0: never.
    start_timeout_s: that a collective may wait for a process up to the end of the first step; timeout_s: afterwards. It
    must be longer than any checkpoint takes.
    """

    beat_s: float = setting(1.0, above=0)
    stall_s: float = setting(8.0, above=0)
    balance_every: int = setting(50, least=0)
    start_timeout_s: float = setting(600.0, above=0)
    timeout_s: float = setting(300.0, above=0)


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """steps.jsonl is always written. tensorboard: also TensorBoard event files.

    wandb: "offline" or "online" writes to Weights & Biases too. mlflow: a tracking URI, as sqlite:///mlflow.db or
    http://HOST:PORT, writes to MLflow too. Both need the extra `track`; project: the project or experiment there.
    prometheus_port: above 0, programs on this machine read the newest numbers at http://127.0.0.1:PORT/metrics; the
    second process of a node has the port after it, and so on.
    """

    tensorboard: bool = True
    wandb: str = ""
    mlflow: str = ""
    project: str = "vlarge"
    prometheus_port: int = setting(0, least=0, below=65536)
