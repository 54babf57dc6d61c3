"""Layers with weights of their own for each robot, over packed rows: one matrix product for each robot in the batch.

Rows are sorted by robot, so that no weight is copied for each sample; gradients of robots that are not there are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.precision import full_precision


@dataclass(frozen=True)
class Groups:
    """Rows by robot. numbers, counts: of each robot that is there. order: rows sorted by robot; back: its inverse."""

    numbers: tuple[int, ...]
    counts: tuple[int, ...]
    order_T: Tensor
    back_T: Tensor

    @classmethod
    def of(cls, number_T: np.ndarray) -> Groups:
        """From the robot of each row. No row at all counts as none of robot 0, so that there is always a product."""
        numbers, counts = np.unique(number_T, return_counts=True) if len(number_T) else ([0], [0])
        order = np.argsort(number_T, kind="stable")
        index = torch.from_numpy(order), torch.from_numpy(np.argsort(order))
        return cls(tuple(map(int, numbers)), tuple(map(int, counts)), *index)

    def to(self, device: torch.device) -> Groups:
        return Groups(self.numbers, self.counts, self.order_T.to(device), self.back_T.to(device))


class EmbodimentLinear(nn.Module):
    """A linear layer for each robot. weight [E, in, out], bias [E, out]. A new one keeps the scale of its input."""

    def __init__(self, num_embodiments: int, num_in: int, num_out: int) -> None:
        super().__init__()
        bound = (3 / max(num_in, 1)) ** 0.5
        self.weight = nn.Parameter(torch.empty(num_embodiments, num_in, num_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(num_embodiments, num_out))

    def forward(self, x_TD: Tensor, groups: Groups) -> Tensor:
        """Of rows in the groups' order."""
        # unbind, not an index: its backward makes one gradient of the whole, not one for each robot
        weights, biases = self.weight.unbind(), self.bias.unbind()
        parts = zip(groups.numbers, x_TD.split(groups.counts), strict=True)
        return torch.cat([torch.addmm(biases[number], part, weights[number]) for number, part in parts])


class EmbodimentMLP(nn.Module):
    """Two layers for each robot; the result is always fp32."""

    def __init__(self, num_embodiments: int, num_in: int, hidden: int, num_out: int) -> None:
        super().__init__()
        self.first = EmbodimentLinear(num_embodiments, num_in, hidden)
        self.second = EmbodimentLinear(num_embodiments, hidden, num_out)

    def forward(self, x_TD: Tensor, groups: Groups) -> Tensor:
        y = F.relu(self.first(x_TD.index_select(0, groups.order_T), groups))
        with full_precision(y.device):
            return self.second(y.float(), groups).index_select(0, groups.back_T)


class ActionEncoder(nn.Module):
    """Noised actions and their flow time, in one token for each step."""

    def __init__(self, num_embodiments: int, action_dim: int, width: int) -> None:
        super().__init__()
        self.first = EmbodimentLinear(num_embodiments, action_dim, width)
        self.second = EmbodimentLinear(num_embodiments, 2 * width, width)
        self.third = EmbodimentLinear(num_embodiments, width, width)

    def forward(self, actions_SA: Tensor, time_SD: Tensor, groups: Groups) -> Tensor:
        """fp32 [S, width]. time_SD: features of each step's time."""
        actions, time = (x.index_select(0, groups.order_T) for x in (actions_SA, time_SD))
        y = torch.cat((self.first(actions, groups).float(), time), -1)
        y = self.third(F.silu(self.second(y, groups)), groups)
        return y.float().index_select(0, groups.back_T)
