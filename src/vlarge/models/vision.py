"""SigLIP vision tower: one pass over all images of a batch, each image one segment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlarge.models.attention import AUTO, Segments, attend
from vlarge.models.division import Stack
from vlarge.models.norm import LayerNorm
from vlarge.models.presets import Sizes
from vlarge.models.rows import WHOLE


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    width: int
    depth: int
    mlp: int
    heads: int
    patch: int
    image_size: int

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch) ** 2


def vision_config(c: Sizes) -> VisionConfig:
    """Of a model's tower."""
    return VisionConfig(
        width=c.vision_width,
        depth=c.vision_depth,
        mlp=c.vision_mlp,
        heads=c.vision_heads,
        patch=c.patch,
        image_size=c.image_size,
    )


class FeedForward(nn.Module):
    """Two projections with biases, and GELU by tanh between them."""

    is_row_wise = True

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_TD), approximate="tanh"))


class VisionBlock(nn.Module):
    """Pre-norm transformer block with biases (SigLIP)."""

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.head_dim = c.width // c.heads
        self.attend = attend
        self.norm1 = LayerNorm(c.width, eps=1e-6)
        self.q = nn.Linear(c.width, c.width)
        self.k = nn.Linear(c.width, c.width)
        self.v = nn.Linear(c.width, c.width)
        self.o = nn.Linear(c.width, c.width)
        self.norm2 = LayerNorm(c.width, eps=1e-6)
        self.mlp = FeedForward(c.width, c.mlp)

    def forward(self, x_TD: Tensor, segments: Segments) -> Tensor:
        y = self.norm1(x_TD)
        q, k, v = (f(y).unflatten(-1, (-1, self.head_dim)) for f in (self.q, self.k, self.v))
        x_TD = x_TD + self.o(self.attend(q, k, v, segments).flatten(1))
        return x_TD + self.mlp(self.norm2(x_TD))


class VisionTower(nn.Module):
    """Images to tokens. The patch embedding is a convolution written as the matrix product that it is."""

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.config = c
        self.patch_embed = nn.Linear(3 * c.patch**2, c.width)
        self.positions = nn.Parameter(grid_positions(c.image_size // c.patch, c.width))
        self.blocks = nn.ModuleList(VisionBlock(c) for _ in range(c.depth))
        self.norm = LayerNorm(c.width, eps=1e-6)
        self.rows = WHOLE

    def forward(self, images_NHWC: Tensor, attention: str = AUTO) -> Tensor:
        """uint8 (or float in [-1, 1]) [N, image_size, image_size, 3] -> tokens [N * num_patches, width]."""
        c = self.config
        if not images_NHWC.is_floating_point():
            images_NHWC = images_NHWC.float() / 127.5 - 1.0
        x_NPD = self.patch_embed(patches(images_NHWC, c.patch)) + self.positions
        x_TD = self.rows.own(x_NPD.flatten(0, 1))
        segments = Segments.self_attention((c.num_patches,) * len(images_NHWC), backend=attention)
        for block in self.blocks:
            x_TD = block(x_TD, segments)
        return self.rows.all(self.norm(x_TD), segments.num_queries)


def patches(images_NHWC: Tensor, patch: int) -> Tensor:
    """[N, H, W, C] -> [N, num_patches, C * patch * patch]: rows first, values in a convolution's order."""
    n, h, w, c = images_NHWC.shape
    x = images_NHWC.reshape(n, h // patch, patch, w // patch, patch, c)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(n, (h // patch) * (w // patch), c * patch * patch)


def grid_positions(side: int, width: int, max_period: float = 100.0) -> Tensor:
    """Where learned positions start: sines and cosines of row and column, [side * side, width].

    As plain ViTs trained from scratch start (arXiv 2205.01580).
    """
    frequencies = max_period ** -torch.linspace(0, 1, width // 4)
    angles = torch.arange(side)[:, None] * frequencies
    axis = torch.cat((angles.sin(), angles.cos()), 1)
    rows, columns = axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)
    return torch.cat((rows, columns), 2).reshape(side * side, -1)


def tower_stack(name: str, c: Sizes) -> Stack:
    """The blocks of the tower that a network calls `name`."""
    return Stack(
        name=f"{name}.blocks",
        first=None,
        heads=c.vision_heads,
        kv_heads=c.vision_heads,
        mlp=c.vision_mlp,
        num_rows={"forward": lambda _x, segments: segments.num_queries},
    )
