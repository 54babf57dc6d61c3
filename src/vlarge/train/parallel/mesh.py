"""Which process this is and how many there are. Under torchrun the run is distributed, otherwise it is alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """rank of size; local_rank of local_size on this node picks the device."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all processes, exact for integers up to 2^53."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def texts(self, text: str) -> list[str]:
        """What every process says, by rank."""
        if self.size == 1:
            return [text]
        own = torch.tensor([*text.encode()], dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(own)]))
        padded = torch.nn.functional.pad(own, (0, max(int(n) for n in lengths) - len(own)))
        said = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(said, padded)
        return [bytes(each[: int(n)].tolist()).decode() for each, n in zip(said, lengths, strict=True)]

    def of_this_node(self, text: str) -> str:
        """What the first process of this node says; others may say anything."""
        return self.texts(text)[self.rank - self.local_rank]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined_world() -> Iterator[World]:
    """The world that torchrun's variables describe, with its process group open inside the block."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield World()
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    try:
        local_rank, local_size = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        yield World(dist.get_rank(), dist.get_world_size(), local_rank, local_size)
    finally:
        dist.destroy_process_group()
