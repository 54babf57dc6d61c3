"""A mixture of experts in place of a feed-forward part: each token goes to a few of many gated MLPs, none is dropped.

Tokens are sorted by expert and each expert multiplies its own, so that no work is padding. Balance (Switch
Transformers, arXiv 2101.03961) is judged over a whole optimizer step: the shares of tokens are those of the step
before, which all processes know before they compute, so the loss does not depend on how a batch is split.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.language import ACTIVATIONS, LanguageConfig
from vlarge.models.precision import full_precision


class MixtureOfExperts(nn.Module):
    """`num_experts` gated MLPs of the given sizes, `top_k` of them for each token, weighted by the router.

    After a forward pass, `imbalance` is the sum over tokens of num_experts * sum_e share_e * probability_e: its mean is
    1 when tokens are spread evenly. `count_E` adds up tokens until `settle`.
    """

    imbalance: Tensor
    share_E: Tensor
    count_E: Tensor

    def __init__(self, c: LanguageConfig, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.activation = ACTIVATIONS[c.activation]
        self.router = nn.Linear(c.width, num_experts, bias=False)
        self.gate, self.up = (_weights(num_experts, c.mlp, c.width) for _ in range(2))
        self.down = _weights(num_experts, c.width, c.mlp)
        self.register_buffer("share_E", torch.full((num_experts,), 1 / num_experts))
        self.register_buffer("count_E", torch.zeros(num_experts), persistent=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        with full_precision(x_TD.device):
            probability_TE = self.router(x_TD.float()).softmax(-1)
        weight_TK, expert_TK = probability_TE.topk(self.top_k, -1)
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
        count_E = torch.zeros_like(self.share_E).index_add(0, expert_TK.flatten(), torch.ones_like(weight_TK).flatten())
        self.imbalance = len(self.share_E) * (probability_TE.sum(0) * self.share_E).sum()
        if self.training:
            self.count_E += count_E
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
        self.count_E.zero_()


def mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    """Every mixture of a model, in order."""
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def imbalance(of: Sequence[MixtureOfExperts]) -> Tensor:
    """Of the last forward pass, summed over tokens and the mean over mixtures; 0 without any."""
    return sum((mixture.imbalance for mixture in of), torch.zeros(())) / max(len(of), 1)


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
