"""Which process this is and how many there are. Under torchrun the run is distributed, otherwise it is alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from vlarge.contracts import InputError
from vlarge.train.health.meeting import meet
from vlarge.train.health.pulse import COMMUNICATE, Pulse

START_S = 600.0


@dataclass(frozen=True)
class World:
    """rank of size; local_rank of local_size on this node picks the device.

    pulse: what this process is doing; it knows of each wait for the others here. launch: a name that all starts of one
    torchrun share; empty without it. meeting: the store of this start's processes. cpu_backend: torch's name of what
    groups send tensors by that lie on the CPU.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    pulse: Pulse = field(default_factory=Pulse, compare=False)
    launch: str = ""
    meeting: dist.Store = field(default_factory=dist.HashStore, compare=False)
    cpu_backend: str = "gloo"

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all processes, exact for integers up to 2^53."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with self.pulse.section(COMMUNICATE):
            dist.all_reduce(total)
        return total.tolist()

    def texts(self, text: str) -> list[str]:
        """What every process says, by rank."""
        if self.size == 1:
            return [text]
        own = torch.tensor([*text.encode()], dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self.pulse.section(COMMUNICATE):
            dist.all_gather(lengths, torch.tensor([len(own)]))
        padded = torch.nn.functional.pad(own, (0, max(int(n) for n in lengths) - len(own)))
        said = [torch.empty_like(padded) for _ in range(self.size)]
        with self.pulse.section(COMMUNICATE):
            dist.all_gather(said, padded)
        return [bytes(each[: int(n)].tolist()).decode() for each, n in zip(said, lengths, strict=True)]

    def together[T](self, work: Callable[[], T]) -> T:
        """What every process does before any of them goes on. What one cannot do, all refuse with its InputError."""
        found: list[T] = []
        text = ""
        try:
            found.append(work())
        except InputError as error:
            text = str(error)
        refusal = next((each for each in self.texts(text) if each), "")
        if refusal:
            raise InputError(refusal)
        return found[0]

    def barrier(self) -> None:
        if self.size > 1:
            with self.pulse.section(COMMUNICATE):
                dist.barrier()

    def connection(self) -> dist.Store:
        """To the store of this start's processes, for one thread alone."""
        return self.meeting.clone() if self.size > 1 else self.meeting  # type: ignore[attr-defined]  # torch's stubs lack it


@contextmanager
def joined_world(start_timeout_s: float = START_S) -> Iterator[World]:
    """The world that torchrun's variables describe, with its process group open inside the block.

    start_timeout_s: that the other processes may take to come, and a collective until `timeouts.shorten`.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield World()
        return
    timeout = timedelta(seconds=start_timeout_s)
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    meeting = meet(store, rank, size, start_timeout_s)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=meeting.store, rank=rank, world_size=size, timeout=timeout)
    try:
        local_rank, local_size = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        yield World(rank, size, local_rank, local_size, launch=meeting.launch, meeting=meeting.store)
    finally:
        dist.destroy_process_group()
