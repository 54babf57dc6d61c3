"""What both transformers of GR00T's head are made of: attention and feed-forward with biases, norms told the time."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.attention import Segments, attend
from vlarge.models.language import KeysValues
from vlarge.models.norm import LayerNorm
from vlarge.models.vision import FeedForward

NORM_EPS = 1e-5


def start_at_zero(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)


class Attention(nn.Module):
    """Queries of one width over keys and values from another, in the same number of heads."""

    def __init__(self, width: int, context_width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.attend = attend
        self.q = nn.Linear(width, heads * head_dim)
        self.k = nn.Linear(context_width, heads * head_dim)
        self.v = nn.Linear(context_width, heads * head_dim)
        self.o = nn.Linear(heads * head_dim, width)

    def keys_values(self, context_TD: Tensor) -> KeysValues:
        k, v = (f(context_TD).unflatten(-1, (-1, self.head_dim)) for f in (self.k, self.v))
        return k, v

    def forward(self, y_SD: Tensor, keys_values: KeysValues, segments: Segments) -> Tensor:
        q = self.q(y_SD).unflatten(-1, (-1, self.head_dim))
        return self.o(self.attend(q, *keys_values, segments).flatten(1))


class FeatureBlock(nn.Module):
    """Pre-norm self-attention over the features of each sample."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width, eps=NORM_EPS)
        self.attention = Attention(width, width, heads, width // heads)
        self.norm2 = LayerNorm(width, eps=NORM_EPS)
        self.mlp = FeedForward(width, 4 * width)

    def forward(self, x_VD: Tensor, segments: Segments) -> Tensor:
        y = self.norm1(x_VD)
        x_VD = x_VD + self.attention(y, self.attention.keys_values(y), segments)
        return x_VD + self.mlp(self.norm2(x_VD))


class AdaptiveLayerNorm(nn.Module):
    """LayerNorm whose scale and shift come from a condition; a new one is a plain norm."""

    is_row_wise = True

    def __init__(self, width: int, eps: float = NORM_EPS) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 2 * width)
        start_at_zero(self.dense)

    def scale_shift(self, condition_DD: Tensor) -> Tensor:
        """[D, 2 * width]: what the conditions ask for."""
        return self.dense(condition_DD).float()

    def forward(self, x_SD: Tensor, scale_shift_DD: Tensor, draw_S: Tensor) -> Tensor:
        """Normalised tokens [S, width]; `draw_S` says which condition each token has."""
        scale, shift = scale_shift_DD.index_select(0, draw_S).chunk(2, -1)
        return F.layer_norm(x_SD, x_SD.shape[-1:], eps=self.eps) * (1.0 + scale) + shift


class DenoiserBlock(nn.Module):
    """Pre-norm attention over the features, or among the tokens of a draw, told the flow time.

    A new block adds nothing to its tokens, so that the actions come through from the first step on.
    """

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = AdaptiveLayerNorm(width)
        self.attention = Attention(width, context_width, heads, width // heads)
        self.mlp = FeedForward(width, 4 * width)
        start_at_zero(self.attention.o)
        start_at_zero(self.mlp.down)

    def forward(
        self,
        x_SD: Tensor,
        condition_DD: Tensor,
        draw_S: Tensor,
        segments: Segments,
        *,
        features_VD: Tensor | None = None,
        keys_values: KeysValues | None = None,
        among: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """The tokens look at features, or at keys and values made of them already. Without either they look at each
        other, or at the tokens that they are `among`, whose draws it says too.
        """
        scale_shift_DD = self.norm1.scale_shift(condition_DD)
        y = self.norm1(x_SD, scale_shift_DD, draw_S)
        if keys_values is None:
            seen = y if among is None else self.norm1(among[0], scale_shift_DD, among[1])
            keys_values = self.attention.keys_values(seen if features_VD is None else features_VD)
        x_SD = x_SD + self.attention(y, keys_values, segments)
        return x_SD + self.mlp(F.layer_norm(x_SD, x_SD.shape[-1:], eps=NORM_EPS))
