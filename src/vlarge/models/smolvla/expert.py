"""The two kinds of layers of SmolVLA's action expert.

Both read the keys and values that the same layer of the language model makes of the context. What they make of those
themselves, whatever the actions, is made once: `read`. Then `forward` follows for every set of actions.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vlarge.models.attention import Segments, attend
from vlarge.models.language import GatedMLP, KeysValues, KeyValue, LanguageConfig, Query
from vlarge.models.rotary import Rotary
from vlarge.models.smolvla.layout import Layout


class ExpertLayer(nn.Module):
    """What both kinds have: a pre-norm layer whose keys and values come from `key_value`."""

    def __init__(self, c: LanguageConfig, key_value: nn.Module) -> None:
        super().__init__()
        self.norm1 = c.norm(c.width)
        self.key_value = key_value
        self.query = Query(c)
        self.norm2 = c.norm(c.width)
        self.mlp = GatedMLP(c)

    def read(self, context: KeysValues, layout: Layout) -> KeysValues:
        """The context's keys and values, as `forward` wants them."""
        raise NotImplementedError

    def _attend(self, x_SD: Tensor, y_SD: Tensor, seen: KeysValues, rotary: Rotary, segments: Segments) -> Tensor:
        # y: the normed x.
        x_SD = x_SD + self.query(y_SD, seen, rotary, partial(attend, segments=segments))
        return x_SD + self.mlp(self.norm2(x_SD))


class JointLayer(ExpertLayer):
    """Actions see their context, themselves and earlier actions; positions go on where the context ends."""

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__(c, KeyValue(c))

    def read(self, context: KeysValues, layout: Layout) -> KeysValues:
        """As they are."""
        return context

    def forward(self, x_SD: Tensor, context: KeysValues, rotary: Rotary, layout: Layout) -> Tensor:
        """The actions' next residual stream."""
        y_SD = self.norm1(x_SD)
        both = zip(context, self.key_value(y_SD, rotary), strict=True)
        keys, values = (torch.cat(pair).index_select(0, layout.joint_index_K) for pair in both)
        return self._attend(x_SD, y_SD, (keys, values), rotary, layout.suffix)


class CrossLayer(ExpertLayer):
    """Actions see their context only, through another projection of its keys; positions count from the first action."""

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__(c, Reprojection(c))

    def read(self, context: KeysValues, layout: Layout) -> KeysValues:
        """In this layer's projection, sample by sample."""
        keys, values = self.key_value(context)
        return keys.index_select(0, layout.state_index_K), values.index_select(0, layout.state_index_K)

    def forward(self, x_SD: Tensor, context: KeysValues, rotary: Rotary, layout: Layout) -> Tensor:
        """The actions' next residual stream."""
        return self._attend(x_SD, self.norm1(x_SD), context, rotary, layout.cross)


class Reprojection(nn.Module):
    """Keys and values of another model, turned into a layer's own. They have their positions already."""

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__()
        self.k = nn.Linear(c.kv_heads * c.head_dim, c.kv_heads * c.head_dim, bias=False)
        self.v = nn.Linear(c.kv_heads * c.head_dim, c.kv_heads * c.head_dim, bias=False)

    def forward(self, context: KeysValues) -> KeysValues:
        keys, values = context
        return self.k(keys.flatten(1)).view_as(keys), self.v(values.flatten(1)).view_as(values)
