"""The training stream as a rank sees it: its micro-batches of every global batch, ready before it asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vlarge.contracts import InputError, PackedBatch, SampleId
from vlarge.data.index import Dataset
from vlarge.data.service.arena import ArenaView
from vlarge.data.service.batches import Ready, Replacement
from vlarge.data.service.feed import Feed
from vlarge.data.service.node import NodeService

BAD_FROM_SAMPLES = 500  # before so many, a few bad samples say nothing about their share
TOLD_SAMPLES = 100  # each by itself; more only fill the log
ASK_S = 2.0  # between two questions to a service in another process, what it is waiting for


class Service(Protocol):
    """A node's service, in this process or in another."""

    def take(self, timeout_s: float) -> Ready | None:
        """This rank's next batch; None when it is not there in time. Raises what stopped the service."""

    def release(self, slot: int) -> None: ...

    @property
    def counters(self) -> dict[str, Any]:
        """See `NodeService.counters`."""

    def late(self) -> str:
        """What the service is waiting for, in one line."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Limits:
    """stall_s: a wait so long is reported, and again each time it has passed. max_bad_fraction: of samples so far."""

    stall_s: float = 10.0
    max_bad_fraction: float = 0.05

    def are_exceeded(self, num_bad: int, num_samples: int) -> bool:
        """Whether too many samples had to be replaced."""
        return num_bad > self.max_bad_fraction * max(num_samples, BAD_FROM_SAMPLES)

    def error(self, num_bad: int, num_samples: int, reason: str) -> InputError:
        """What to raise then. reason: why one of them was replaced."""
        return InputError(
            f"{num_bad} of {num_samples} samples cannot be read; data.max_bad_fraction = {self.max_bad_fraction}"
            f" allows fewer; the last: {reason}; `vlarge data check --deep` finds all of them"
        )


DEFAULT_LIMITS = Limits()


class Stream:
    """Iterates for ever over this rank's share of every global batch: a list of micro-batches. Close it when done.

    Global batch s holds the samples at positions [s * batch_size, (s + 1) * batch_size) of the order, on any number of
    ranks and from any start. A batch's images are shared memory, which is used again once nothing refers to them.
    Raises InputError for data that cannot be read, and when too many of this rank's samples had to be replaced.

    replaced: each sample that could not be read, and what stood in its place the last time; num_replaced: how often.
    """

    def __init__(
        self,
        service: Service,
        view: ArenaView,
        image_shape: tuple[int, int],
        limits: Limits,
        tell: Callable[[str], None],
    ) -> None:
        self._service = service
        self._view = view
        self._image_shape = image_shape
        self._limits = limits
        self._tell = tell
        self._closed = False
        self.wait_s = 0.0
        self.num_images = self.num_samples = 0
        self.num_replaced = 0
        self.replaced: dict[SampleId, SampleId] = {}
        self.last_reason = ""

    def __iter__(self) -> Iterator[list[PackedBatch]]:
        return self

    def __next__(self) -> list[PackedBatch]:
        if self._closed:
            raise StopIteration
        start_s = told_s = time.monotonic()
        while (ready := self._service.take(min(self._limits.stall_s, ASK_S))) is None:
            now_s = time.monotonic()
            if now_s - told_s >= self._limits.stall_s:
                told_s = now_s
                self._tell(f"waited {now_s - start_s:.0f} s for data so far: {self.late()}")
        self.wait_s += time.monotonic() - start_s
        self._account(ready)
        return self._with_images(ready)

    def late(self) -> str:
        """What the service is waiting for, as it last said: stages and files. Any thread may ask."""
        return self._service.late()

    def counters(self) -> dict[str, Any]:
        """Of the node's service so far, and this rank's own."""
        own = {"samples": self.num_samples, "images": self.num_images, "wait_s": self.wait_s}
        return {**self._service.counters, **own, "replaced": self.num_replaced}

    def close(self) -> None:
        """End the service's work for this rank. May be called twice; the iteration then ends."""
        if not self._closed:
            self._closed = True
            self._service.close()
            self._view.close()

    def _account(self, ready: Ready) -> None:
        self.num_samples += sum(batch.num_samples for batch in ready.batches)
        self.num_images += sum(ready.num_images)
        for replacement in ready.replacements:
            self._note(replacement)
        if self._limits.are_exceeded(self.num_replaced, self.num_samples):
            raise self._limits.error(self.num_replaced, self.num_samples, self.last_reason)

    def _note(self, replacement: Replacement) -> None:
        bad, used, self.last_reason = replacement.bad, replacement.used, replacement.reason
        if bad not in self.replaced and len(self.replaced) <= TOLD_SAMPLES:
            told = f"sample {tuple(bad)} replaced by {tuple(used)}: {replacement.reason}"
            self._tell(
                told if len(self.replaced) < TOLD_SAMPLES else "more samples are replaced; they are only counted"
            )
        self.replaced[bad] = used
        self.num_replaced += 1

    def _with_images(self, ready: Ready) -> list[PackedBatch]:
        shape = (sum(ready.num_images), *self._image_shape, 3)
        images = self._view.view(ready.slot, shape, self._release)
        batches, first = [], 0
        for batch, count in zip(ready.batches, ready.num_images, strict=True):
            batches.append(replace(batch, images_NHWC=images[first : first + count]))
            first += count
        return batches

    def _release(self, slot: int) -> None:
        if not self._closed:
            self._service.release(slot)


class InProcess:
    """A service in threads of this process, for one rank."""

    def __init__(self, node: NodeService) -> None:
        self.node = node

    def take(self, timeout_s: float) -> Ready | None:
        return self.node.take(0, timeout_s)

    def release(self, slot: int) -> None:
        self.node.release(slot)

    @property
    def counters(self) -> dict[str, Any]:
        return self.node.counters()

    def late(self) -> str:
        return self.node.late()

    def close(self) -> None:
        self.node.close()


def stream_here(
    feed: Feed, datasets: Sequence[Dataset] = (), limits: Limits = DEFAULT_LIMITS, tell: Callable[[str], None] = print
) -> Stream:
    """A stream decoded by threads of this process, which is the only rank of its node."""
    node = feed.open(datasets)
    view = ArenaView(os.dup(node.arena.file), node.arena.slot_bytes)
    return Stream(InProcess(node), view, feed.image_shape, limits, tell)
