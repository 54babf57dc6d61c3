"""What the trainer needs of an engine, and which one a recipe asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from vlarge.contracts import InputError, PackedBatch
from vlarge.models.division import Division
from vlarge.models.moe import MixtureOfExperts
from vlarge.models.network import PolicyNetwork
from vlarge.recipe import Recipe
from vlarge.train.config import DEEPSPEED, TrainConfig
from vlarge.train.engine import Engine
from vlarge.train.parallel.mesh import Mesh


class TrainingEngine(Protocol):
    """What every process of a run calls alike, step by step.

    networks: what this process has of the network, by stage; mixtures: those in them. shapes: of every tensor of the
    whole network.
    """

    networks: list[PolicyNetwork[Any, Any]]

    @property
    def shapes(self) -> Mapping[str, Sequence[int]]: ...

    @property
    def mixtures(self) -> list[MixtureOfExperts]: ...

    def add_gradients(self, batches: Sequence[PackedBatch], step: int, num_valid: float, num_tokens: float) -> Tensor:
        """Of this process's micro-batches; its share of the loss. The numbers are those of the whole global batch."""

    def settle_mixtures(self) -> None:
        """Tell every mixture of experts how all processes' tokens of this step were spread."""

    def update(self, lr: float, step: int) -> Tensor:
        """An optimizer step after all micro-batches. Returns the norm of the whole gradient; where it is not finite,
        the weights stay as they are.
        """

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs of this process, which may be loaded into: model, optimizer, ema, by parameter."""

    def adopt(self, state: dict[str, Any]) -> None:
        """Go on from a `state` that was loaded into."""


def require_engine(recipe: Recipe) -> None:
    """Raise InputError for an engine that is not there, or that the rest of the recipe does not go with."""
    parallel = recipe.parallel
    parallel.check()
    if parallel.engine != DEEPSPEED:
        return
    if recipe.train.micro_batch_tokens == "auto":
        raise InputError(
            'train.micro_batch_tokens = "auto" does not go with parallel.engine = "deepspeed", which keeps the'
            " gradients of what is tried: give a number of tokens"
        )
    if find_spec("deepspeed") is None:
        raise InputError(
            'parallel.engine = "deepspeed" needs the package deepspeed, which is not installed:'
            " pip install 'vlarge[deepspeed]', or leave parallel.engine at \"torch\""
        )
    if not (dist.is_initialized() or dist.is_torchelastic_launched()):
        raise InputError(
            'parallel.engine = "deepspeed" works on processes that torchrun starts, be it one:'
            " torchrun --nproc-per-node N -m vlarge train …"
        )
    if recipe.train.compile and parallel.zero_stage == 3:
        raise InputError(
            "train.compile does not go with parallel.zero_stage 3, which gathers weights between the compiled parts:"
            " leave one of them out"
        )


def make_engine(
    network: PolicyNetwork[Any, Any],
    division: Division,
    mesh: Mesh,
    c: TrainConfig,
    *,
    seed: int,
    device: torch.device,
) -> TrainingEngine:
    """The engine that the mesh is for. network: whole, the same on every process; it is used up."""
    kind: Callable[..., TrainingEngine] = Engine
    if mesh.degrees.engine == DEEPSPEED:
        from vlarge.train.zero.engine import DeepSpeedEngine  # which imports what an extra installs

        kind = DeepSpeedEngine
    return kind(network, division, mesh, c, seed=seed, device=device)
