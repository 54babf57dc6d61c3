"""Which weights of a model are trained, and how: parts frozen, low-rank adapters (arXiv 2106.09685), weight decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.contracts import InputError
from vlarge.models.config import ModelConfig
from vlarge.models.moe import Experts
from vlarge.models.network import PolicyNetwork

Parts = Mapping[str, Sequence[str]]  # name of a part -> beginnings of its parameters' names
ADAPTERS = ("lora_down", "lora_up")
DECAYED = (nn.Linear, nn.Embedding, Experts)


class LowRankLinear(nn.Linear):
    """A frozen projection and a trained change of its weight of low rank, which starts at zero."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.requires_grad_(False)
        device, dtype = base.weight.device, base.weight.dtype
        self.lora_down = nn.Parameter(torch.empty(rank, base.in_features, device=device, dtype=dtype))
        self.lora_up = nn.Parameter(torch.zeros(base.out_features, rank, device=device, dtype=dtype))
        nn.init.normal_(self.lora_down, std=base.in_features**-0.5)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x, self.lora_down), self.lora_up)
        return F.linear(x, self.weight, self.bias) + self.scale * low


def adapt(model: PolicyNetwork[Any, Any], c: ModelConfig) -> None:
    """Freeze and add adapters as a recipe says. Raises InputError for a part or a projection that does not exist."""
    parts = model.PARTS
    unknown = [name for name in c.freeze if name not in parts]
    if unknown:
        raise InputError(f"model.freeze: {c.name} has no part {unknown[0]!r}; parts: {', '.join(parts)}")
    for name, parameter in model.named_parameters():
        if part_of(name, parts) in c.freeze:
            parameter.requires_grad_(False)
    if c.lora_rank:
        _add_adapters(model, c)
    elif c.lora_alpha:
        raise InputError("model.lora_alpha scales adapters, and there are none: set model.lora_rank")


def _add_adapters(model: nn.Module, c: ModelConfig) -> None:
    if not any(c.lora_on):
        raise InputError("model.lora_rank asks for adapters and model.lora_on names no projection")
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for pattern in c.lora_on:
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise InputError(
                f"model.lora_on: no projection of {c.name} is called {pattern!r}; there are, for instance,"
                f" {', '.join(sorted({'*.' + name.rsplit('.', 1)[-1] for name in linear}))}"
            )
    for name, module in linear.items():
        if any(fnmatchcase(name, pattern) for pattern in c.lora_on):
            if c.lora_rank > (most := min(module.in_features, module.out_features)):
                raise InputError(f"model.lora_rank is {c.lora_rank}: {name} has a rank of at most {most} itself")
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, LowRankLinear(module, c.lora_rank, c.lora_alpha or c.lora_rank))


def by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trained parameters on which weight decay falls, and the others.

    It falls on matrices of projections and mixtures and on embeddings. Norms, biases and positions are left alone, and
    so is what GR00T has for each robot: decay would shrink the weights of robots that are not in the run.
    """
    decayed, others = list[nn.Parameter](), list[nn.Parameter]()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                falls = isinstance(module, DECAYED) and parameter.ndim >= 2
                (decayed if falls else others).append(parameter)
    return decayed, others


def part_of(name: str, parts: Parts) -> str:
    """The part that a parameter belongs to."""
    return next(part for part, beginnings in parts.items() if name.startswith(tuple(beginnings)))


def merged(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """A state dict of the model (or an average of it) with its adapters added to the weights that they change.

    scale: lora_alpha / lora_rank.
    """
    down, up = (f".{adapter}" for adapter in ADAPTERS)
    plain = {name: value for name, value in state.items() if not name.endswith(ADAPTERS)}
    for name in [name.removesuffix(down) for name in state if name.endswith(down)]:
        plain[f"{name}.weight"] = plain[f"{name}.weight"] + scale * (state[name + up] @ state[name + down])
    return plain


def adapter_scale(c: ModelConfig) -> float:
    """Of all adapters that a recipe asks for."""
    return (c.lora_alpha or c.lora_rank) / c.lora_rank if c.lora_rank else 0.0
