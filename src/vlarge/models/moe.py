"""A mixture of experts in place of a feed-forward part: each token goes to a few of many gated MLPs, none is dropped.

Tokens are sorted by expert and each expert multiplies its own, so that no work is padding. Balance (Switch
Transformers, arXiv 2101.03961) is judged over a whole optimizer step: the shares of tokens are those of the step
before, which all processes know before they compute, so the loss does not depend on how a batch is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.language import ACTIVATIONS, LanguageConfig
from vlarge.models.precision import full_precision


class Experts(nn.Module):
    """Gated MLPs beside each other. gate, up [E, mlp, width], down [E, width, mlp]."""

    def __init__(self, c: LanguageConfig, num_experts: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[c.activation]
        self.gate, self.up = (_weights(num_experts, c.mlp, c.width) for _ in range(2))
        self.down = _weights(num_experts, c.width, c.mlp)

    def forward(self, x_RD: Tensor, count_E: Tensor) -> Tensor:
        """Of rows sorted by expert; count_E: how many each has."""
        hidden = self.activation(_grouped(x_RD, self.gate, count_E)) * _grouped(x_RD, self.up, count_E)
        return _grouped(hidden, self.down, count_E)


class Router(nn.Linear):
    """How much each token is for each expert, in fp32 whatever its weights have travelled in."""

    def forward(self, x_TD: Tensor) -> Tensor:
        with full_precision(x_TD.device):
            return F.linear(x_TD.float(), self.weight.float())


class MixtureOfExperts(nn.Module):
    """`num_experts` gated MLPs of the given sizes, `top_k` of them for each token, weighted by the router.

    share_E: of the tokens of the optimizer step before, those that each expert had.
    """

    share_E: Tensor

    def __init__(self, c: LanguageConfig, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = Router(c.width, num_experts, bias=False)
        self.experts = Experts(c, num_experts)
        self.register_buffer("share_E", torch.full((num_experts,), 1 / num_experts))
        self.balance_weight = 0.0  # of `imbalance` in what is minimised
        self.balance = Balance.of_none(num_experts)

    def forward(self, x_TD: Tensor) -> Tensor:
        probability_TE = self.router(x_TD).softmax(-1)
        weight_TK, expert_TK = probability_TE.topk(self.top_k, -1)
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
        count_E = torch.zeros_like(self.share_E).index_add(0, expert_TK.flatten(), torch.ones_like(weight_TK).flatten())
        imbalance = len(self.share_E) * (probability_TE.sum(0) * self.share_E).sum()
        if self.training and not _is_run_again():
            self.balance.add(count_E, imbalance)
        order = expert_TK.flatten().argsort(stable=True)
        y = self.experts(x_TD.index_select(0, order // self.top_k), count_E)
        y_TKD = y.index_select(0, order.argsort()).unflatten(0, expert_TK.shape)
        y_TD = (y_TKD * weight_TK[..., None]).sum(1)
        return _Minimising.apply(y_TD, imbalance, self.balance_weight)

    @torch.no_grad()
    def settle(self, count_E: Tensor) -> None:
        """At the end of an optimizer step: the shares are now those of all its tokens, on every process."""
        self.forget()
        if count_E.sum() > 0:
            self.share_E.copy_(count_E / count_E.sum())

    def forget(self) -> None:
        """Count from none again; the shares stay."""
        self.balance = Balance.of_none(len(self.share_E))


class _Minimising(torch.autograd.Function):
    """The rows as they are. In the backward pass `weight * also` is minimised beside whatever is."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, also: Tensor, weight: float) -> Tensor:
        ctx.weight, ctx.dtype = weight, also.dtype
        return x_TD.view_as(x_TD)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad_TD, torch.tensor(ctx.weight, dtype=ctx.dtype, device=grad_TD.device), None


@dataclass
class Balance:
    """Of one mixture in training, since it was settled: the tokens that went to each expert, and the sum over tokens
    of num_experts * sum_e share_e * probability_e, whose mean is 1 when tokens are spread evenly.
    """

    count_E: Tensor
    imbalance: Tensor

    @classmethod
    def of_none(cls, num_experts: int) -> Balance:
        return cls(torch.zeros(num_experts, device="cpu"), torch.zeros((), device="cpu"))

    def add(self, count_E: Tensor, imbalance: Tensor) -> None:
        self.count_E = self.count_E.to(count_E.device) + count_E
        self.imbalance = self.imbalance.to(count_E.device) + imbalance.detach()


def _is_run_again() -> bool:
    # In a backward pass, for layers that kept their inputs only: those tokens are counted already.
    return torch._C._current_graph_task_id() != -1


def mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    """Every mixture of a model, in order."""
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _weights(num_experts: int, out_dim: int, in_dim: int) -> nn.Parameter:
    weights = nn.Parameter(torch.empty(num_experts, out_dim, in_dim))
    bound = in_dim**-0.5  # as nn.Linear starts
    nn.init.uniform_(weights, -bound, bound)
    return weights


def _grouped(x_RD: Tensor, weights_EOD: Tensor, count_E: Tensor) -> Tensor:
    """Each run of rows times its expert's weights: one kernel where there is one, otherwise expert by expert."""
    if x_RD.device.type == "meta" or (x_RD.device.type == "cuda" and torch.is_autocast_enabled("cuda")):
        ends = count_E.cumsum(0).to(torch.int32)
        return F.grouped_mm(x_RD.bfloat16(), weights_EOD.bfloat16().transpose(1, 2), offs=ends)
    parts = x_RD.split([int(count) for count in count_E.tolist()])
    return torch.cat([F.linear(part, weights) for part, weights in zip(parts, weights_EOD, strict=True)])
