"""What the machine can do: peak arithmetic for FLOP utilisation, memory for the step line."""

from __future__ import annotations

import os
import time
from functools import cache

import torch

from vlarge.contracts import InputError

# Dense bf16 peaks from the vendors' data sheets, in FLOP/s.
PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12, "RTX 4090": 165e12}


def resolve_device(name: str, local_rank: int) -> torch.device:
    """Resolve "auto": this process's GPU if there is one, the CPU otherwise.

    Raises InputError for a device that torch does not know or this machine does not have.
    """
    if name != "auto":
        if name.partition(":")[0] not in ("cpu", "cuda"):
            raise InputError(f"train.device is {name!r}; use 'auto', 'cpu' or 'cuda'")
        if name.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"train.device is {name!r}, but torch sees no GPU here; use 'auto' or 'cpu'")
        return torch.device(name)
    return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


def peak_flops(device: torch.device, dtype: str) -> float:
    """Peak FLOP/s of one process: the data sheet's for a known GPU, measured by a matrix product elsewhere."""
    if device.type == "cuda" and dtype == "bf16":
        name = torch.cuda.get_device_name(device)
        for card, peak in PEAK_BF16.items():
            if card in name:
                return peak
    return _measured_flops(device, torch.bfloat16 if dtype == "bf16" else torch.float32)


def _measured_flops(device: torch.device, dtype: torch.dtype, size: int = 1024, repeats: int = 6) -> float:
    a = torch.ones(size, size, device=device, dtype=dtype)
    best_s = float("inf")
    for _ in range(repeats):
        start_s = time.perf_counter()
        (a @ a)[0, 0].item()  # the read waits for the product
        best_s = min(best_s, time.perf_counter() - start_s)
    return 2 * size**3 / best_s


def memory(device: torch.device) -> tuple[int, float]:
    """Bytes, and their share of what there is: of a GPU the most in use so far, else what this process uses now.

    The most, because a step's activations are gone at its end, and are what a larger batch needs room for.
    """
    if device.type == "cuda":
        used, total = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
        return used, used / total
    page = os.sysconf("SC_PAGE_SIZE")
    used = int(os.pread(_own_pages(), 100, 0).split()[1]) * page
    return used, used / (os.sysconf("SC_PHYS_PAGES") * page)


def room_bytes(device: torch.device, local_size: int) -> float:
    """That this process can have beside what it uses, a machine's memory shared with its neighbours."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + idle)
    with open("/proc/meminfo") as lines:
        available = next(line for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(available.split()[1]) / local_size


@cache
def _own_pages() -> int:
    # Opened once: that takes a hundred times as long as reading it.
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
