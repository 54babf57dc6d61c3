"""Decoder layers of language models over packed tokens: Gemma, SmolLM (Llama) and Qwen3, by configuration.

There are no language heads here: a policy discards every logit. Each layer hands out its keys and values, which is all
that an action expert reads, and the last layer of a model whose output nobody reads has nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.norm import RMSNorm
from vlarge.models.rotary import Rotary, rotate

KeysValues = tuple[Tensor, Tensor]  # [T, H, D] each
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys, values [T, H, D] -> [T, H, D]


CPU_ROWS = 1024  # at a time: what is between the projections then stays in a CPU's cache


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """activation: "gelu" (Gemma's, by tanh) or "silu".

    norm_offset: 1 where norms store their distance from one (Gemma), or 0.
    norms_heads: queries and keys are normalised head by head (Qwen3).
    """

    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    activation: str = "gelu"
    norm_eps: float = 1e-6
    norm_offset: float = 1.0
    norms_heads: bool = False

    def norm(self, dim: int) -> RMSNorm:
        return RMSNorm(dim, self.norm_eps, self.norm_offset)


class KeyValue(nn.Module):
    """Key and value projections of one layer."""

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.k = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=False)
        self.v = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=False)
        self.norm = c.norm(c.head_dim) if c.norms_heads else None

    def forward(self, y_TD: Tensor, rotary: Rotary) -> KeysValues:
        k, v = (f(y_TD).unflatten(-1, (-1, self.head_dim)) for f in (self.k, self.v))
        return rotate(k if self.norm is None else self.norm(k).to(k.dtype), rotary), v


class Query(nn.Module):
    """Query and output projections of one layer, around the attention."""

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q = nn.Linear(c.width, c.heads * c.head_dim, bias=False)
        self.o = nn.Linear(c.heads * c.head_dim, c.width, bias=False)
        self.norm = c.norm(c.head_dim) if c.norms_heads else None

    def forward(self, y_TD: Tensor, keys_values: KeysValues, rotary: Rotary, attention: Attention) -> Tensor:
        q = self.q(y_TD).unflatten(-1, (-1, self.head_dim))
        q = rotate(q if self.norm is None else self.norm(q).to(q.dtype), rotary)
        return self.o(attention(q, *keys_values).flatten(1))


class GatedMLP(nn.Module):
    """The gated feed-forward part. cpu_rows: that a CPU works on at a time."""

    is_row_wise = True
    cpu_rows = CPU_ROWS

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[c.activation]
        self.gate = nn.Linear(c.width, c.mlp, bias=False)
        self.up = nn.Linear(c.width, c.mlp, bias=False)
        self.down = nn.Linear(c.mlp, c.width, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        if x_TD.device.type == "cpu" and len(x_TD) > self.cpu_rows:
            return torch.cat([self._rows(part) for part in x_TD.split(self.cpu_rows)])
        return self._rows(x_TD)

    def _rows(self, x_TD: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x_TD)) * self.up(x_TD))


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": _gelu, "silu": F.silu}


class DecoderLayer(nn.Module):
    """One pre-norm layer. With `keys_only` it ends after its keys and values."""

    def __init__(self, c: LanguageConfig, *, keys_only: bool = False) -> None:
        super().__init__()
        self.norm1 = c.norm(c.width)
        self.key_value = KeyValue(c)
        self.query = None if keys_only else Query(c)
        self.norm2 = None if keys_only else c.norm(c.width)
        self.mlp = None if keys_only else GatedMLP(c)

    def forward(self, x_TD: Tensor, rotary: Rotary, attention: Attention) -> tuple[Tensor, KeysValues]:
        """The next residual stream (unchanged with `keys_only`) and this layer's keys and values."""
        y = self.norm1(x_TD)
        keys_values = self.key_value(y, rotary)
        if self.query is not None and self.norm2 is not None and self.mlp is not None:
            x_TD = x_TD + self.query(y, keys_values, rotary, attention)
            x_TD = x_TD + self.mlp(self.norm2(x_TD))
        return x_TD, keys_values
