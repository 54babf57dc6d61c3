"""One process reads a share of a global batch; those that work on it together get it from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from vlarge.contracts import PackedBatch

NAMES = [item.name for item in fields(PackedBatch)]


def deliver(batches: Sequence[PackedBatch] | None, group: dist.ProcessGroup) -> list[PackedBatch]:
    """The lead's micro-batches, on every process of the group; others give None. Nothing is pickled."""
    lead = dist.get_global_rank(group, 0)
    head, body = _packed(batches) if batches is not None else (b"", torch.empty(0, dtype=torch.uint8))
    sizes = torch.tensor([len(head), len(body)])
    dist.broadcast(sizes, lead, group=group)
    if batches is None:
        body = torch.empty(int(sizes[1]), dtype=torch.uint8)
    text = torch.tensor([*head], dtype=torch.uint8) if head else torch.empty(int(sizes[0]), dtype=torch.uint8)
    dist.broadcast(text, lead, group=group)
    dist.broadcast(body, lead, group=group)
    return list(batches) if batches is not None else _unpacked(json.loads(bytes(text.tolist())), body.numpy())


def _packed(batches: Sequence[PackedBatch]) -> tuple[bytes, torch.Tensor]:
    arrays = [getattr(batch, name) for batch in batches for name in NAMES]
    head = json.dumps([[a.dtype.str, a.shape] for a in arrays]).encode()
    parts = [np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8) for a in arrays]
    return head, torch.from_numpy(np.concatenate(parts))


def _unpacked(head: list[Any], body: np.ndarray) -> list[PackedBatch]:
    arrays, start = [], 0
    for dtype, shape in head:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays.append(body[start : start + size].copy().view(dtype).reshape(shape))
        start += size
    rows = [arrays[i : i + len(NAMES)] for i in range(0, len(arrays), len(NAMES))]
    return [PackedBatch(**dict(zip(NAMES, row, strict=True))) for row in rows]
