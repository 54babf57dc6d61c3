"""How long a collective may wait: long while a run starts, short afterwards; and what is kept of one that did not end.

Processes read data, build models and compile at different speeds before the first step is over; later, one that does
not come within minutes does not come at all.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import distributed_c10d as c10d

from vlarge.train.parallel.world import World

NUM_RECORDED = "2000"  # collectives that the flight recorder remembers


def shorten(world: World, timeout_s: float) -> None:
    """From here on, collectives of every group fail after so long. All processes call it at the same place."""
    if world.size == 1:
        return
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    world.barrier()  # nobody is still in a collective that may take long
    for group in list(c10d._world.pg_map):
        c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def record_flights(run_dir: Path) -> None:
    """Let NCCL write what each rank was doing when a collective times out into the run directory.

    torch reads these variables when a process group opens; what the user has set stays. Each has an older name.
    """
    prefix = str(run_dir.absolute() / "flight_recorder_rank_")
    for names, value in (
        (("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), NUM_RECORDED),
        (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"),
        (("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), prefix),
    ):
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = value
