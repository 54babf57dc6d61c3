"""Attention over segments: packed tokens in, packed tokens out, no padded token.

A segment is a run of query tokens that sees one run of keys and nothing else. Both runs are laid end to end, so two
lists of lengths say everything. There are several ways to compute it; each isolates segments by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from vlarge.contracts import InputError

FLEX_BLOCK = 128  # rows of one block of FlexAttention's mask
AUTO = "auto"


@dataclass(frozen=True)
class Segments:
    """Lengths of the query and key runs, segment by segment. Queries without keys give zeros.

    causal: the queries are the last of their keys' tokens, and see those keys that are not later than themselves.
    backend: how to compute it, one of `BACKENDS`, or "auto".
    """

    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    causal: bool = False
    backend: str = AUTO
    _on_device: dict[tuple[str, torch.device], Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.q_lengths) != len(self.k_lengths):
            raise ValueError(f"{len(self.q_lengths)} query segments but {len(self.k_lengths)} key segments")
        if self.causal and any(q > k for q, k in zip(self.q_lengths, self.k_lengths, strict=True)):
            raise ValueError("causal segments need at least as many keys as queries")

    @classmethod
    def self_attention(cls, lengths: tuple[int, ...], *, causal: bool = False, backend: str = AUTO) -> Segments:
        return cls(lengths, lengths, causal, backend)

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

    def offsets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """int32 [segments + 1]: where each query run and each key run begins. Made once for each device."""
        return self._once(
            "offsets", device, lambda: (_offsets(self.q_lengths, device), _offsets(self.k_lengths, device))
        )

    def block_mask(self, device: torch.device) -> BlockMask:
        """The same for FlexAttention, over token counts rounded up by `bucket`. Made once for each device."""
        return self._once("block mask", device, lambda: _block_mask(self, device))

    def _once(self, what: str, device: torch.device, make: Callable[[], Any]) -> Any:
        if (what, device) not in self._on_device:
            self._on_device[what, device] = make()
        return self._on_device[what, device]


def attend(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """Softmax attention within segments; grouped-query when keys have fewer heads. Returns [T, H, D].

    Raises ValueError when the segments do not cover the tensors, or when the backend cannot compute them.
    """
    if segments.num_queries != q_THD.shape[0] or segments.num_keys != k_THD.shape[0]:
        raise ValueError(
            f"segments cover {segments.num_queries} queries and {segments.num_keys} keys,"
            f" tensors hold {q_THD.shape[0]} and {k_THD.shape[0]}"
        )
    if not segments.num_queries or not segments.num_keys:
        return q_THD * 0 + 0 * (k_THD.sum() + v_THD.sum())  # nothing, and yet part of the graph on every process
    return _backend(segments.backend, q_THD).run(q_THD, k_THD, v_THD, segments)


def check_backend(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise InputError for a backend that there is not, or that cannot train there."""
    try:
        _backend(name, torch.empty(1, 1, 64, device=device, dtype=dtype, requires_grad=True))
    except ValueError as error:
        raise InputError(f"model.attention is {name!r}: {error}; choose {AUTO!r}") from error


def _backend(name: str, q_THD: Tensor) -> Backend:
    if name == AUTO:
        return BACKENDS["sdpa" if BACKENDS["flash"].refuses(q_THD) else "flash"]
    if name not in BACKENDS:
        raise ValueError(f"no attention backend {name!r}; there are {AUTO}, {', '.join(sorted(BACKENDS))}")
    if reason := BACKENDS[name].refuses(q_THD):
        raise ValueError(f"attention backend {name!r} {reason}")
    return BACKENDS[name]


def _by_runs(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """One scaled_dot_product_attention call per run of equal-shaped segments.

    Samples laid out by length make neighbours of equal shape, so that there are few calls.
    """
    # split, not slices: its backward is one concatenation
    q_runs = q_THD.split([count * q_len for count, q_len, _ in segments.runs])
    k_runs, v_runs = (x.split([count * k_len for count, _, k_len in segments.runs]) for x in (k_THD, v_THD))
    outputs = []
    for (count, q_len, k_len), q, k, v in zip(segments.runs, q_runs, k_runs, v_runs, strict=True):
        if not q_len or not k_len:
            outputs.append(torch.zeros_like(q))
            continue
        q, k, v = (x.unflatten(0, (count, n)) for x, n in ((q, q_len), (k, k_len), (v, k_len)))
        outputs.append(_one_shape(q, k, v, segments.causal).flatten(0, 1))
    return torch.cat(outputs)


def _one_shape(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, causal: bool) -> Tensor:
    q_len, k_len, kv_heads = q_BTHD.shape[1], k_BTHD.shape[1], k_BTHD.shape[2]
    k, v = k_BTHD.transpose(1, 2), v_BTHD.transpose(1, 2)
    if causal:
        square = q_len == k_len
        visible = None if square else torch.ones(q_len, k_len, dtype=torch.bool, device=k.device).tril(k_len - q_len)
        grouped = q_BTHD.shape[2] != kv_heads
        q = q_BTHD.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, visible, is_causal=square, enable_gqa=grouped).transpose(1, 2)
    # The query heads of one key head lie beside each other: as further queries of it they need no copy of the keys.
    q = q_BTHD.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(2, 3)
    out = F.scaled_dot_product_attention(q, k, v)
    return out.unflatten(2, (q_len, -1)).transpose(1, 2).flatten(2, 3)


def _dense_reference(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """The definition, slow: one segment at a time, explicit softmax. What the other backends are tested against."""
    outputs, q_at, k_at = [], 0, 0
    repeat = q_THD.shape[1] // k_THD.shape[1]
    for q_len, k_len in zip(segments.q_lengths, segments.k_lengths, strict=True):
        q = q_THD[q_at : q_at + q_len].transpose(0, 1)
        k = k_THD[k_at : k_at + k_len].transpose(0, 1).repeat_interleave(repeat, 0)
        v = v_THD[k_at : k_at + k_len].transpose(0, 1).repeat_interleave(repeat, 0)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if segments.causal:
            later = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).triu(1 + k_len - q_len)
            scores = scores.masked_fill(later, float("-inf"))
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
        q_at, k_at = q_at + q_len, k_at + k_len
    return torch.cat(outputs)


def _flash(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """FlashAttention's kernel for sequences of various lengths, as torch brings it; keys may have fewer heads."""
    q_offsets, k_offsets = segments.offsets(q_THD.device)
    longest = max(segments.q_lengths), max(segments.k_lengths)
    forward = torch.ops.aten._flash_attention_forward
    return forward(q_THD, k_THD, v_THD, q_offsets, k_offsets, *longest, 0.0, segments.causal, False)[0]


def _flash_refuses(q_THD: Tensor) -> str:
    if q_THD.device.type != "cuda":
        return f"needs a CUDA device, not {q_THD.device.type}"
    if q_THD.dtype not in (torch.bfloat16, torch.float16):
        return f"needs bfloat16 or float16, not {q_THD.dtype}"
    if q_THD.shape[-1] > 256 or q_THD.shape[-1] % 8:
        return f"needs heads of at most 256 and a multiple of 8, not {q_THD.shape[-1]}"
    return ""


def _flex(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, segments: Segments) -> Tensor:
    """FlexAttention, compiled on a GPU. Token counts are rounded up, so that few shapes are compiled."""
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, bucket(len(x)) - len(x))).transpose(0, 1)[None] for x in (q_THD, k_THD, v_THD))
    mask, grouped = segments.block_mask(q.device), q_THD.shape[1] != k_THD.shape[1]
    out = _flex_kernel(q.device.type)(q, k, v, block_mask=mask, enable_gqa=grouped)
    return out[0].transpose(0, 1)[: len(q_THD)]


def _flex_refuses(q_THD: Tensor) -> str:
    return "computes no gradients on a CPU" if q_THD.device.type == "cpu" and q_THD.requires_grad else ""


def _flex_kernel(device_type: str) -> Callable[..., Any]:
    if device_type == "cpu":
        return flex_attention
    if not _COMPILED_FLEX:
        _COMPILED_FLEX.append(torch.compile(flex_attention, dynamic=False))
    return _COMPILED_FLEX[0]


def bucket(num_tokens: int) -> int:
    """A count rounded up: to whole blocks, and to an eighth of its power of two. At most eight for each doubling."""
    step = max(FLEX_BLOCK, 1 << max(num_tokens - 1, 1).bit_length() >> 4)
    return -(-num_tokens // step) * step


def _block_mask(segments: Segments, device: torch.device) -> BlockMask:
    q_owner, k_owner = (_owners(lengths, device) for lengths in (segments.q_lengths, segments.k_lengths))
    ends_q, ends_k = (offsets[1:].long() for offsets in segments.offsets(device))
    to_end_q, to_end_k = (_to_end(owner, ends) for owner, ends in ((q_owner, ends_q), (k_owner, ends_k)))

    def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same = (q_owner[q] == k_owner[k]) & (q_owner[q] >= 0)
        return same & (to_end_q[q] <= to_end_k[k]) if segments.causal else same

    return create_block_mask(visible, None, None, len(q_owner), len(k_owner), device, BLOCK_SIZE=FLEX_BLOCK)


def _owners(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    # The segment of each token; -1 for what only fills up to a bucket.
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return F.pad(owners, (0, bucket(len(owners)) - len(owners)), value=-1).to(device)


def _to_end(owner: Tensor, ends: Tensor) -> Tensor:
    # How many tokens of its own segment come after each token.
    return torch.where(owner >= 0, ends[owner.clamp_min(0)] - 1 - torch.arange(len(owner), device=owner.device), 0)


def _offsets(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device, non_blocking=True)


class Backend(NamedTuple):
    """A way to compute attention. `refuses` says why it cannot for such queries: empty where it can."""

    run: Callable[[Tensor, Tensor, Tensor, Segments], Tensor]
    refuses: Callable[[Tensor], str] = lambda _: ""


_COMPILED_FLEX: list[Callable[..., Any]] = []
BACKENDS = {
    "sdpa": Backend(_by_runs),
    "dense": Backend(_dense_reference),
    "flash": Backend(_flash, _flash_refuses),
    "flex": Backend(_flex, _flex_refuses),
}
