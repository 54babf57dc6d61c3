"""Attention over segments: packed tokens in, packed tokens out, no mask tensor and no padded token.

A segment is a run of query tokens that sees one run of keys and nothing else. Both runs are laid end to end, so two
lists of lengths say everything. Samples laid out by length make neighbours of equal shape; each such run of segments is
one batched call (exact: no segment can read another's keys, whatever the kernel does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Segments:
    """Lengths of the query and key runs, segment by segment. `causal` also hides later keys (equal lengths only)."""

    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    causal: bool = False

    def __post_init__(self) -> None:
        if len(self.q_lengths) != len(self.k_lengths):
            raise ValueError(f"{len(self.q_lengths)} query segments but {len(self.k_lengths)} key segments")
        if self.causal and self.q_lengths != self.k_lengths:
            raise ValueError("causal segments need as many queries as keys")

    @classmethod
    def self_attention(cls, lengths: tuple[int, ...], causal: bool = False) -> Segments:
        return cls(lengths, lengths, causal)

    @property
    def num_queries(self) -> int:
        return sum(self.q_lengths)

    @property
    def num_keys(self) -> int:
        return sum(self.k_lengths)

    @cached_property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """Neighbouring segments of equal shape: (number of segments, queries each, keys each)."""
        shapes = zip(self.q_lengths, self.k_lengths, strict=True)
        return tuple((len(list(group)), q, k) for (q, k), group in groupby(shapes))


def attend(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments, backend: str = "sdpa") -> Tensor:
    """Softmax attention within segments; grouped-query when keys have fewer heads. Returns [T, H, D].

    Raises ValueError when the segments do not cover the tensors, or for an unknown backend.
    """
    if segments.num_queries != q_THD.shape[0] or segments.num_keys != k_THD.shape[0]:
        raise ValueError(
            f"segments cover {segments.num_queries} queries and {segments.num_keys} keys,"
            f" tensors hold {q_THD.shape[0]} and {k_THD.shape[0]}"
        )
    if backend not in BACKENDS:
        raise ValueError(f"no attention backend {backend!r}; there are {', '.join(sorted(BACKENDS))}")
    return BACKENDS[backend](q_THD, k_THD, v_THD, segments)


def _by_runs(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """One scaled_dot_product_attention call per run of equal-shaped segments."""
    if not segments.runs:
        return torch.zeros_like(q_THD)
    # split, not slices: its backward is one concatenation
    q_runs = q_THD.split([count * q_len for count, q_len, _ in segments.runs])
    k_runs, v_runs = (x.split([count * k_len for count, _, k_len in segments.runs]) for x in (k_THD, v_THD))
    grouped = q_THD.shape[1] != k_THD.shape[1]
    outputs = []
    for (count, q_len, k_len), q, k, v in zip(segments.runs, q_runs, k_runs, v_runs, strict=True):
        q, k, v = (x.unflatten(0, (count, n)).transpose(1, 2) for x, n in ((q, q_len), (k, k_len), (v, k_len)))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=segments.causal, enable_gqa=grouped)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _dense_reference(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """The definition, slow: one segment at a time, explicit softmax. What the other backends are tested against."""
    outputs, q_at, k_at = [], 0, 0
    repeat = q_THD.shape[1] // max(k_THD.shape[1], 1)
    for q_len, k_len in zip(segments.q_lengths, segments.k_lengths, strict=True):
        q = q_THD[q_at : q_at + q_len].transpose(0, 1)
        k = k_THD[k_at : k_at + k_len].transpose(0, 1).repeat_interleave(repeat, 0)
        v = v_THD[k_at : k_at + k_len].transpose(0, 1).repeat_interleave(repeat, 0)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if segments.causal:
            later = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
        q_at, k_at = q_at + q_len, k_at + k_len
    return torch.cat(outputs) if outputs else torch.zeros_like(q_THD)


BACKENDS: dict[str, Callable[[Tensor, Tensor, Tensor, Segments], Tensor]] = {
    "sdpa": _by_runs,
    "dense": _dense_reference,
}


def rotate(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotary position embedding, half-rotation layout (Gemma, Llama in transformers)."""
    cos, sin = cos_TD[:, None], sin_TD[:, None]
    first, second = x_THD.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x_THD * cos.to(x_THD.dtype) + turned * sin.to(x_THD.dtype)


def rotary_angles(positions_T: Tensor, head_dim: int, theta: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, head_dim] in fp32 for integer positions."""
    exponents = torch.arange(0, head_dim, 2, device=positions_T.device, dtype=torch.float32) / head_dim
    angles = positions_T.float()[:, None] * (theta**-exponents)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()
