"""How a network may be divided over processes: its stacks of layers, and where each of its other parts is used.

Every model folder says so in its `parallel.py`; `vlarge.train.parallel` does it, from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod
from typing import Any

from vlarge.contracts import InputError

NumRows = Callable[..., int]  # of a layer's arguments: rows of the whole stack


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Layers of a kind that follow each other.

    name: of their ModuleList. first: the number of the first one, as `PolicyNetwork.advance` counts; None for what is
    run on entering the network. heads, kv_heads, mlp: what is divided in each layer; 0 where there is none.
    num_rows: by name of a layer's method, how many rows the stack has, from its arguments.
    """

    name: str
    first: int | None
    heads: int
    kv_heads: int
    mlp: int
    num_rows: Mapping[str, NumRows]


@dataclass(frozen=True, kw_only=True)
class Division:
    """Of one network. num_layers: as `advance` counts. used_at: beginnings of the names of parameters outside all
    stacks, and the layer that they are used right before; all others are used on entering. used_last: after all layers.

    costs: the work of entering, then of each layer, in any unit; empty where all layers count alike.
    num_experts: that can be divided, in every mixture or layer that has some; 0 for none.
    whole_because: why tokens and projections cannot be divided; empty where they can.
    """

    stacks: tuple[Stack, ...]
    num_layers: int
    used_at: Mapping[str, int]
    used_last: tuple[str, ...]
    costs: tuple[float, ...] = ()
    num_experts: int = 0
    whole_because: str = ""

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to: -1 on entering, num_layers on leaving."""
        for stack in self.stacks:
            if name.startswith(stack.name + "."):
                number = int(name.removeprefix(stack.name + ".").partition(".")[0])
                return -1 if stack.first is None else stack.first + number
        if name.startswith(self.used_last):
            return self.num_layers
        return next((layer for start, layer in self.used_at.items() if name.startswith(start)), -1)

    def cut(self, num_stages: int) -> list[range]:
        """The layers of each stage, so that the one with the most work has as little as can be."""
        costs = self.costs or (0.0, *[1.0] * self.num_layers)
        before = [0.0, *accumulate((costs[0] + costs[1], *costs[2:]))]  # entering is the first stage's
        most = {0: [0.0] + [inf] * self.num_layers}  # of so many stages: over the first n layers
        last: dict[int, list[int]] = {}
        for stages in range(1, num_stages + 1):
            best = [min(_ends(most[stages - 1], before, end), default=(inf, 0)) for end in range(self.num_layers + 1)]
            most[stages], last[stages] = [cost for cost, _ in best], [start for _, start in best]
        cuts, end = list[range](), self.num_layers
        for stages in range(num_stages, 0, -1):
            cuts.append(range(last[stages][end], end))
            end = last[stages][end]
        return cuts[::-1]

    def check(self, *, num_stages: int, ep: int, cp: int, tp: int) -> None:
        """Raise InputError, naming the rule, where the network cannot be divided so."""
        if num_stages > self.num_layers:
            raise InputError(f"parallel.pp asks for {num_stages} stages, the model has {self.num_layers} layers to cut")
        if ep > 1 and (not self.num_experts or self.num_experts % ep):
            none = "no experts: leave it at 1, or set model.num_experts where the model has it"
            has = f"{self.num_experts} experts in each, which it must divide" if self.num_experts else none
            raise InputError(f"parallel.ep is {ep}, and the model has {has}")
        if prod((cp, tp)) > 1 and self.whole_because:
            raise InputError(f"parallel.tp and parallel.cp must be 1: {self.whole_because}")
        for stack in self.stacks:
            self._check_stack(stack, cp, tp)

    def _check_stack(self, stack: Stack, cp: int, tp: int) -> None:
        if stack.mlp % tp:
            raise InputError(f"parallel.tp is {tp}: it must divide the {stack.mlp} hidden columns of {stack.name}")
        if stack.heads % (tp * cp):
            raise InputError(
                f"parallel.tp {tp} x cp {cp}: their product must divide the {stack.heads} heads of {stack.name}"
            )
        if stack.kv_heads > 1 and stack.kv_heads % (tp * cp):
            raise InputError(
                f"parallel.tp {tp} x cp {cp}: their product must divide the {stack.kv_heads} key heads of {stack.name}"
            )


def _ends(most: list[float], before: list[float], end: int) -> Iterator[tuple[float, int]]:
    # Of a stage that ends there, by where it starts: the most that any stage up to it has.
    return ((max(most[start], before[end] - before[start]), start) for start in range(end))


def rows_of_angles(at: int) -> NumRows:
    """From the argument that has the angles of every token."""

    def num_rows(*args: Any, **_more: Any) -> int:
        return len(args[at][0])

    return num_rows
