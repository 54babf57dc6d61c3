"""The context axis: the tokens of a sample divided over processes, which exchange tokens for heads around attention.

DeepSpeed-Ulysses (arXiv 2309.14509) over packed segments: each process has all tokens of some heads while it attends,
so segments stay what they are and the result is exact. A single head of keys is gathered instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from vlarge.models.attention import Segments
from vlarge.models.language import KeysValues, KeyValue, Query
from vlarge.models.rotary import Rotary
from vlarge.train.parallel.collectives import Line


def divide_attention(layer: nn.Module, line: Line) -> None:
    """Exchange tokens for heads wherever a layer attends."""
    module: Any
    for module in layer.modules():
        if isinstance(module, KeyValue):
            module.forward = partial(_keys_values, module.forward, line)  # type: ignore[method-assign]
        elif isinstance(module, Query):
            module.forward = partial(_query, module.forward, line)  # type: ignore[method-assign]
        elif hasattr(module, "attend"):
            module.attend = partial(_attend, module.attend, line)


def to_heads(x_THD: Tensor, line: Line, num_rows: int) -> Tensor:
    """Own rows of all heads to all rows of own heads; a single head is everybody's."""
    if x_THD.shape[1] == 1:
        return line.gather(x_THD, num_rows)
    parts = x_THD.unflatten(1, (line.size, -1)).transpose(0, 1)  # [size, own rows, own heads, D]
    return line.exchange(parts.flatten(0, 1), [len(x_THD)] * line.size, line.shares(num_rows))


def to_rows(x_THD: Tensor, line: Line) -> Tensor:
    """All rows of own heads to own rows of all heads."""
    shares = line.shares(len(x_THD))
    parts = line.exchange(x_THD, shares, [shares[line.rank]] * line.size)
    return parts.unflatten(0, (line.size, shares[line.rank])).transpose(0, 1).flatten(1, 2)


def _keys_values(forward: Callable[..., KeysValues], line: Line, y_TD: Tensor, rotary: Rotary) -> KeysValues:
    k, v = forward(y_TD, _own_angles(rotary, line))
    return to_heads(k, line, len(rotary[0])), to_heads(v, line, len(rotary[0]))


def _query(
    forward: Callable[..., Tensor],
    line: Line,
    y_TD: Tensor,
    keys_values: KeysValues,
    rotary: Rotary,
    attention: Callable[..., Tensor],
) -> Tensor:
    def exchanging(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return to_rows(attention(to_heads(q, line, len(rotary[0])), k, v), line)

    return forward(y_TD, keys_values, _own_angles(rotary, line), exchanging)


def _attend(attend: Callable[..., Tensor], line: Line, q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    q, k, v = (
        to_heads(x, line, n) for x, n in ((q, segments.num_queries), (k, segments.num_keys), (v, segments.num_keys))
    )
    return to_rows(attend(q, k, v, segments), line)


def _own_angles(rotary: Rotary, line: Line) -> Any:
    return tuple(line.own(each) for each in rotary)
