"""A mixture of experts in place of a feed-forward part: each token goes to a few of many gated MLPs, none is dropped.

Tokens are sorted by expert and each expert multiplies its own, so that no work is padding. Balance (Switch
Transformers, arXiv 2101.03961) is judged over a whole optimizer step: the shares of tokens are those of the step
before, which all processes know before they compute, so the loss does not depend on how a batch is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.language import ACTIVATIONS, LanguageConfig
from vlarge.models.precision import full_precision


class MixtureOfExperts(nn.Module):
    """`num_experts` gated MLPs of the given sizes, `top_k` of them for each token, weighted by the router.

    share_E: of the tokens of the optimizer step before, those that each expert had.
    """

    share_E: Tensor

    def __init__(self, c: LanguageConfig, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.activation = ACTIVATIONS[c.activation]
        self.router = nn.Linear(c.width, num_experts, bias=False)
        self.gate, self.up = (_weights(num_experts, c.mlp, c.width) for _ in range(2))
        self.down = _weights(num_experts, c.width, c.mlp)
        self.register_buffer("share_E", torch.full((num_experts,), 1 / num_experts))
        self._watched: Balance | None = None

    def forward(self, x_TD: Tensor) -> Tensor:
        with full_precision(x_TD.device):
            probability_TE = self.router(x_TD.float()).softmax(-1)
        weight_TK, expert_TK = probability_TE.topk(self.top_k, -1)
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
        count_E = torch.zeros_like(self.share_E).index_add(0, expert_TK.flatten(), torch.ones_like(weight_TK).flatten())
        imbalance = len(self.share_E) * (probability_TE.sum(0) * self.share_E).sum()
        if self._watched is not None:
            self._watched.add(count_E, imbalance)
        order = expert_TK.flatten().argsort(stable=True)
        y = self._experts(x_TD.index_select(0, order // self.top_k), count_E)
        y_TKD = y.index_select(0, order.argsort()).unflatten(0, expert_TK.shape)
        return (y_TKD * weight_TK[..., None]).sum(1)

    def _experts(self, x_RD: Tensor, count_E: Tensor) -> Tensor:
        # Rows sorted by expert.
        hidden = self.activation(_grouped(x_RD, self.gate, count_E)) * _grouped(x_RD, self.up, count_E)
        return _grouped(hidden, self.down, count_E)

    @torch.no_grad()
    def settle(self, count_E: Tensor) -> None:
        """At the end of an optimizer step: the shares are now those of all its tokens, on every process."""
        if count_E.sum() > 0:
            self.share_E.copy_(count_E / count_E.sum())


@dataclass
class Balance:
    """Of one mixture: the tokens that went to each expert, and the sum over tokens of num_experts * sum_e share_e *
    probability_e, whose mean is 1 when tokens are spread evenly.
    """

    count_E: Tensor
    imbalance: Tensor

    def add(self, count_E: Tensor, imbalance: Tensor) -> None:
        self.count_E, self.imbalance = self.count_E + count_E, self.imbalance + imbalance


@contextmanager
def watched(of: Sequence[MixtureOfExperts]) -> Iterator[list[Balance]]:
    """What the forward passes inside do, mixture by mixture; not those that a backward pass runs again afterwards."""
    found = [Balance(torch.zeros_like(each.share_E), each.share_E.new_zeros(())) for each in of]
    for mixture, balance in zip(of, found, strict=True):
        mixture._watched = balance
    try:
        yield found
    finally:
        for mixture in of:
            mixture._watched = None


def mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    """Every mixture of a model, in order."""
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def imbalance(of: Sequence[Balance]) -> Tensor:
    """Summed over tokens and the mean over mixtures; 0 without any."""
    return sum((balance.imbalance for balance in of), torch.zeros(())) / max(len(of), 1)


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
