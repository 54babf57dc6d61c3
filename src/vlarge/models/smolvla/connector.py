"""From the vision tower's patches to the language model's tokens."""

from __future__ import annotations

from torch import Tensor, nn


class Connector(nn.Module):
    """Puts the patches of each square of an image end to end, and projects them to one token."""

    def __init__(self, vision_width: int, scale_factor: int, width: int) -> None:
        super().__init__()
        self.scale_factor = scale_factor
        self.proj = nn.Linear(vision_width * scale_factor**2, width, bias=False)
        # The tokens are multiplied by sqrt(width): they start with values around 1.
        nn.init.normal_(self.proj.weight, std=(vision_width * scale_factor**2 * width) ** -0.5)

    def forward(self, x_TD: Tensor, side: int) -> Tensor:
        """Patches of images, each `side` by `side`, to tokens [T, width]."""
        return self.proj(squares(x_TD, side, self.scale_factor))


def squares(x_TD: Tensor, side: int, length: int) -> Tensor:
    """Patches of images, row by row, to [squares, length * length * D]: squares row by row, each row by row."""
    width = x_TD.shape[1]
    x = x_TD.reshape(-1, side // length, length, side // length, length, width)
    return x.transpose(2, 3).reshape(-1, length * length * width)
