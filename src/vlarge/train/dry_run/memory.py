"""Bytes of memory that live at a time, from the moments at which each piece of it comes and goes.

Storages are followed, not tensors: views cost nothing. FSDP empties and refills them in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(NamedTuple):
    """Bytes at the moment when most were in use. in_flight: gathered weights of FSDP, and their gradients before they
    are scattered; kept: all else.
    """

    kept: int
    in_flight: int


class Memory(TorchDispatchMode):
    """Inside the block, follows what is made there; what was there before is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[
            int, tuple[int, Any]
        ] = {}  # id of a storage -> its number, and a reference that tells its end
        self._sizes: list[int] = []  # by number
        self._events: list[tuple[int, int]] = []  # number, bytes that came or went
        self._in_flight: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # first it takes itself apart
        given = [self._number(x, is_new=False) for x in _tensors((args, kwargs))]
        found = func(*args, **(kwargs or {}))
        made = [self._number(x, is_new=True) for x in _tensors(found)]
        if func.namespace == "fsdp":
            self._in_flight.update(given, made)
        return found

    def __enter__(self) -> Memory:
        self._resizing = _resizes_told(self._resized)
        self._resizing.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._resizing.__exit__(*error)

    def peak(self, apart: Iterable[Tensor]) -> Peak:
        """Of everything but `apart`, which is counted elsewhere."""
        left_out = {self._known[id(x.untyped_storage())][0] for x in apart if id(x.untyped_storage()) in self._known}
        events = np.array([event for event in self._events if event[0] not in left_out], np.int64).reshape(-1, 2)
        if not len(events):
            return Peak(0, 0)
        numbers, changes = events.T
        total = changes.cumsum()
        at = int(total.argmax())
        flying = changes[: at + 1][np.isin(numbers[: at + 1], list(self._in_flight))].sum()
        return Peak(int(total[at] - flying), int(flying))

    def _number(self, x: Tensor, *, is_new: bool) -> int:
        storage = x.untyped_storage()
        if id(storage) in self._known:
            return self._known[id(storage)][0]
        number = len(self._sizes)
        self._sizes.append(0)
        self._known[id(storage)] = number, weakref.ref(storage, partial(self._gone, id(storage)))
        if is_new:
            self._change(number, storage.nbytes())
        return number

    def _change(self, number: int, size: int) -> None:
        self._events.append((number, size - self._sizes[number]))
        self._sizes[number] = size

    def _gone(self, storage_id: int, _reference: object) -> None:
        self._change(self._known.pop(storage_id)[0], 0)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._known:
            number = self._known[id(storage)][0]
            self._in_flight.add(number)
            self._change(number, storage.nbytes())


@contextmanager
def _resizes_told(tell: Any) -> Iterator[None]:
    # No operator is called when FSDP empties a storage, so that no mode sees it.
    resize = torch.UntypedStorage.resize_

    def telling(storage: torch.UntypedStorage, size: int) -> Any:
        found = resize(storage, size)
        tell(storage)
        return found

    torch.UntypedStorage.resize_ = telling  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
