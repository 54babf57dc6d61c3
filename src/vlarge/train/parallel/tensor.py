"""The tensor axis: projections divided by columns and rows, and between them tokens divided over the same processes.

Megatron-LM's layout (arXiv 1909.08053, 2205.05198) by the names that projections have everywhere in the house: what is
called q, k, v, gate or up makes some of the columns from all rows, o and down sum over all columns and hand out some of
the rows. Norms, residuals and everything outside the layers see a process's own rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from vlarge.models.moe import MixtureOfExperts
from vlarge.models.rows import Rows
from vlarge.train.parallel.collectives import Line
from vlarge.train.parallel.expert import HOLDERS
from vlarge.train.parallel.weights import ALIKE, place, use_local

COLUMNS, SUMS, KEYS = ("q", "k", "v", "gate", "up"), ("o", "down"), ("k", "v")
DIMS = {  # of a projection's parameters, the one that is divided
    **{name: {"weight": 0, "bias": 0, "lora_up": 0} for name in COLUMNS},
    **{name: {"weight": 1, "lora_down": 1} for name in SUMS},
}


class SpreadRows(Rows):
    """Rows divided over the context axis, and each part of them over the tensor axis."""

    def __init__(self, context: Line | None, tensor: Line | None) -> None:
        self.context, self.tensor = context, tensor

    def own(self, x: Tensor) -> Tensor:
        return _own(_own(x, self.context), self.tensor)

    def of_context(self, x: Tensor) -> Tensor:
        """Those that this process and its tensor neighbours work on together."""
        return _own(x, self.context)

    def all(self, x: Tensor, num_rows: int) -> Tensor:
        x = self.projected(x, num_rows)
        return self.context.gather(x, num_rows) if self.context else x

    def projected(self, x: Tensor, num_rows: int) -> Tensor:
        return self.tensor.gather(x, self.num_projected(num_rows)) if self.tensor else x

    def num_projected(self, num_rows: int) -> int:
        """How many rows `projected` gives."""
        return self.context.shares(num_rows)[self.context.rank] if self.context else num_rows

    def num_own(self, num_rows: int) -> int:
        """How many rows `own` gives."""
        num_rows = self.num_projected(num_rows)
        return self.tensor.shares(num_rows)[self.tensor.rank] if self.tensor else num_rows

    def summed(self, x: Tensor) -> Tensor:
        """Own rows of the sum of what the tensor neighbours have made of all their rows."""
        return self.tensor.reduce(x) if self.tensor else x


def _own(x: Tensor, line: Line | None) -> Tensor:
    return line.own(x) if line else x


class Height:
    """How many rows a stack of layers has at the moment, on all processes together."""

    num_rows = 0


def divide_layer(layer: nn.Module, rows: SpreadRows, height: Height) -> None:
    """Let one layer of a stack go from own rows to own rows."""
    for name, module in layer.named_modules():
        own_name = name.rsplit(".", 1)[-1]
        if own_name in ("norm1", "norm2"):
            module.forward = partial(_norm, module.forward, rows, height, own_name == "norm1")
        if own_name == "mlp" and not isinstance(module, MixtureOfExperts):
            module.forward = partial(_mlp, module.forward, rows, height)
        if own_name == "o":
            module.forward = partial(_then, module.forward, rows.summed)


def divide_weights(part: nn.Module, mesh: DeviceMesh, *, is_first: bool) -> None:
    """Place the parameters of a part of the network, whose modules from then on see their own of them."""
    for name, module in list(part.named_modules()):
        if isinstance(module, HOLDERS):
            continue  # they have an axis of their own
        parent, _, own_name = name.rpartition(".")
        dims = DIMS.get(own_name, {}) if isinstance(module, nn.Linear) else {}
        if own_name in KEYS and _is_one_head(module, part.get_submodule(parent)):
            dims = {}
        for key, _ in list(module.named_parameters(recurse=False)):
            place(module, key, mesh, [Shard(dims[key]) if key in dims else ALIKE])
        use_local(module, only_first=("bias",) if own_name in SUMS else (), is_first=is_first)


def _is_one_head(module: nn.Module, parent: nn.Module) -> bool:
    # A single head of keys serves all heads of queries: every process has it whole.
    return module.out_features == parent.head_dim


def _norm(forward: Callable[..., Any], rows: SpreadRows, height: Height, gathers: bool, x: Tensor, *told: Any) -> Any:
    # told: what conditions a norm, and which condition each of all rows has.
    num_rows = len(told[-1]) if told else height.num_rows
    found = forward(x, *told[:-1], *(rows.own(index) for index in told[-1:]))
    if not gathers:
        return found
    if isinstance(found, tuple):
        return rows.projected(found[0], num_rows), *found[1:]
    return rows.projected(found, num_rows)


def _mlp(forward: Callable[..., Tensor], rows: SpreadRows, height: Height, x: Tensor) -> Tensor:
    return rows.summed(forward(rows.projected(x, height.num_rows)))


def _then(forward: Callable[..., Tensor], change: Callable[[Tensor], Tensor], *args: Any) -> Tensor:
    return change(forward(*args))
