"""A copy of the state in memory, from which a checkpoint is written while training goes on."""

from __future__ import annotations

import io
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType
from torch.distributed.tensor import DTensor

LARGE_BYTES = 2**20  # from here on, pin_memory=True would waste memory: it takes the next power of two


class Staging:
    """CPU buffers for what this process writes, kept from one checkpoint to the next.

    From a GPU the copies are queued on a stream of their own into page-locked memory: `fence` keeps later work of the
    GPU behind them, `wait` returns when they are done. From the CPU they are done at once.

    Not torch's DefaultStager, which forgets its buffers after each copy, copies whole storages for views, and holds
    all of a replicated tensor on every process.
    """

    def __init__(self) -> None:
        self._buffers: dict[MetadataIndex, Tensor] = {}
        self._bytes: dict[MetadataIndex, bytes] = {}
        self._sources: list[Tensor] = []  # alive until they are copied
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    @torch.no_grad()
    def copy(self, leaves: Mapping[str, Any], plan: SavePlan) -> None:
        """Take the planned parts of the state, by their flat names."""
        before, self._buffers, self._bytes = self._buffers, {}, {}
        for item in plan.items:
            value = leaves[item.index.fqn]
            if item.type is WriteItemType.BYTE_IO:
                self._bytes[item.index] = _serialised(value)
            else:
                local = value.to_local() if isinstance(value, DTensor) else value
                self._buffers[item.index] = self._copied_into(before.pop(item.index, None), local)
        if self._stream is not None and self._sources:
            self._copied = self._stream.record_event()

    def fence(self) -> None:
        """What this thread gives the GPU from now on begins after the copies."""
        copied = self._copied  # which `wait` of another thread clears
        if copied is not None:
            copied.wait()

    def wait(self) -> None:
        """Block until the copies are done."""
        if self._copied is not None:
            self._copied.synchronize()
        self._copied = None
        self._sources.clear()

    def tensors(self) -> list[tuple[str, Tensor]]:
        """The staged parts with the names of the tensors that they are of."""
        return [(index.fqn, buffer) for index, buffer in self._buffers.items()]

    def resolve(self, index: MetadataIndex) -> Tensor | io.BytesIO:
        """What was staged for one item of the plan."""
        return self._buffers[index] if index in self._buffers else io.BytesIO(self._bytes[index])

    def _copied_into(self, buffer: Tensor | None, local: Tensor) -> Tensor:
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            buffer = _buffer_for(local)
        if not local.is_cuda:
            buffer.copy_(local)
            return buffer
        self._sources.append(local)
        with torch.cuda.stream(self._stream_after(local.device)):
            buffer.copy_(local, non_blocking=True)
        return buffer

    def _stream_after(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of the copies, behind what the GPU was given before the first of them."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        if len(self._sources) == 1:
            self._stream.wait_stream(torch.cuda.current_stream(device))
        return self._stream


def _buffer_for(local: Tensor) -> Tensor:
    """With a storage of its own: a part of a larger one would be copied again by torch.save."""
    if not local.is_cuda:
        return torch.empty(local.shape, dtype=local.dtype)
    if local.nbytes < LARGE_BYTES:
        return torch.empty(local.shape, dtype=local.dtype, pin_memory=True)
    buffer = torch.empty(local.shape, dtype=local.dtype)
    runtime, place = torch.cuda.cudart(), buffer.data_ptr()
    torch.cuda.check_error(int(runtime.cudaHostRegister(place, buffer.nbytes, 1)))
    weakref.finalize(buffer, runtime.cudaHostUnregister, place).atexit = False
    return buffer


def _serialised(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
