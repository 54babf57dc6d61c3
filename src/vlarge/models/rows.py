"""Which rows of a stack's tokens a process works on between two layers: all of them, unless a mesh spreads them.

A network asks at the few places where its tokens enter a stack of layers or leave it. Whoever spreads the stacks over
processes puts another object in the place of `WHOLE`, and changes the layers from outside (`vlarge.train.parallel`).
"""

from __future__ import annotations

from torch import Tensor


class Rows:
    """All rows are here."""

    def own(self, x: Tensor) -> Tensor:
        """Of all rows [T, ...], those of this process. In the backward pass the others' gradients are zero."""
        return x

    def all(self, x: Tensor, num_rows: int) -> Tensor:
        """All rows [num_rows, ...] from everybody's own. In the backward pass gradients are summed."""
        return x

    def projected(self, x: Tensor, num_rows: int) -> Tensor:
        """From everybody's own, the rows that this process projects: its part of the weights is for all of them."""
        return x


WHOLE = Rows()
