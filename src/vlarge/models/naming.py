"""Weights by another project's names ↔ ours: strict, by one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlarge.contracts import InputError

Reshape = Callable[[str, Tensor], Tensor]


def _as_it_is(_name: str, value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True)
class Naming:
    """table: beginnings of our names -> of theirs; `#` stands for a layer's number.

    unused: name and shape of what they store and no output depends on: dropped when reading, zeros when writing.
    copies: their name -> another of their names whose weight it repeats (a tied head). It is written; where a
    checkpoint has only the copy, it is read.
    to_ours, to_theirs: (our name, value) -> value, where a weight has another shape.
    """

    table: Mapping[str, str]
    unused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    to_ours: Reshape = _as_it_is
    to_theirs: Reshape = _as_it_is

    def theirs(self, ours: str) -> str:
        """Their name for one of our weights. Raises KeyError for one that the table does not have."""
        number = re.search(r"\.(\d+)\.", ours)
        pattern = ours if number is None else ours.replace(number.group(0), ".#.", 1)
        beginning = max((p for p in self.table if pattern.startswith(p)), key=len, default=None)
        if beginning is None:
            raise KeyError(ours)
        name = self.table[beginning] + pattern[len(beginning) :]
        return name if number is None else name.replace("#", number.group(1))

    def read(self, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state dict, filled from theirs. `ours` gives names and shapes (meta tensors do).

        Raises one InputError that lists every missing, unexpected and mis-shaped key, and those that hold no numbers
        with a fraction.
        """
        found = {name: theirs[copy] for copy, name in self.copies.items() if copy in theirs} | dict(theirs)
        names = {self.theirs(name): name for name in ours}
        shapes_there = self._shapes(ours)
        missing = sorted(names.keys() - found.keys())
        unexpected = sorted(found.keys() - shapes_there.keys())
        shapes = [
            f"{key} is {tuple(found[key].shape)} of {found[key].dtype}, the model's is {shape}"
            for key, shape in shapes_there.items()
            if key in found and (tuple(found[key].shape) != shape or not found[key].is_floating_point())
        ]
        if missing or unexpected or shapes:
            raise InputError(
                f"the checkpoint does not fit the model: missing {missing or 'none'}; unexpected"
                f" {unexpected or 'none'}; wrong shape {shapes or 'none'}"
            )
        return {name: self.to_ours(name, found[key]) for key, name in names.items()}

    def _shapes(self, ours: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        # Of all that their checkpoint may hold.
        blank = {name: torch.empty(value.shape, device="meta") for name, value in ours.items()}
        shapes = {self.theirs(name): tuple(self.to_theirs(name, value).shape) for name, value in blank.items()}
        return shapes | dict(self.unused) | {copy: shapes[name] for copy, name in self.copies.items() if name in shapes}

    def write(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The full state dict that they load strictly."""
        state = {self.theirs(name): self.to_theirs(name, value) for name, value in ours.items()}
        like = next(iter(ours.values()))
        state |= {name: like.new_zeros(shape) for name, shape in self.unused.items()}
        return state | {copy: state[name].clone() for copy, name in self.copies.items()}
