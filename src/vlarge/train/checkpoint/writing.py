"""The files of one checkpoint's state: every process writes its own, the main one what they are together."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from vlarge.contracts import InputError
from vlarge.train.checkpoint.staging import Staging
from vlarge.train.checkpoint.verify import CHECKSUM, METADATA, checksum

MOST_NAMES = 4  # of one message


class _Staged(DefaultSavePlanner):
    """Gives the writer what was staged."""

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self._staging = staging

    def resolve_data(self, write_item: WriteItem) -> Any:
        return self._staging.resolve(write_item.index)


def write_shards(folder: Path, plan: SavePlan, staging: Staging) -> list[WriteResult]:
    """Write and flush this process's file of the checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    # Nothing is on a GPU any more; copying ahead would wait for training's stream.
    writer = FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)
    return writer.write_data(plan, _Staged(staging)).value()


def write_metadata(folder: Path, metadata: Metadata, written: list[list[WriteResult]]) -> None:
    """Write what all files hold together. It is flushed with the folder: torch syncs it before its buffer is out."""
    FileSystemWriter(folder).finish(metadata, written)
    (folder / CHECKSUM).write_text(checksum(folder / METADATA))


def require_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise InputError naming what is NaN or infinite. One pass, nothing allocated."""
    if spoilt := [name for name, value in tensors if not _is_finite(value)]:
        more = f" and {len(spoilt) - MOST_NAMES} more" if len(spoilt) > MOST_NAMES else ""
        raise InputError(f"not finite: {', '.join(spoilt[:MOST_NAMES])}{more}")


def _is_finite(value: Tensor) -> bool:
    if not value.numel() or not (value.is_floating_point() or value.is_complex()):
        return True
    if value.is_complex():
        value = torch.view_as_real(value)
    if value.dtype.itemsize == 1:  # FP8 has no comparisons
        value = value.float()
    return all(bool(end.isfinite()) for end in torch.aminmax(value))


def digests(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Of numbers and strings, by which processes see that they hold the same."""
    return {name: zlib.crc32(repr(value).encode()) for name, value in leaves.items() if not isinstance(value, Tensor)}


def require_same(said: Sequence[Mapping[str, int]]) -> None:
    """Raise InputError for a number or string that differs between processes: only one of them would be saved."""
    seen: dict[str, int] = {}
    for digest in said:
        if other := [name for name, value in digest.items() if seen.setdefault(name, value) != value]:
            raise InputError(f"{other[0]} differs between processes, under one name")
