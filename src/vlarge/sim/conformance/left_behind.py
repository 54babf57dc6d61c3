"""What an environment leaves behind: threads, open files, memory."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np

from vlarge.contracts import EpisodeKey
from vlarge.sim.conformance.playing import Broken, Skipped, Trial, elsewhere, keys, started

LEAST_RESETS = 40
WARM_UP = 0.25  # of the resets: allocators and caches fill
LEAK_BYTES = 64 * 1024  # a reset; the noise of an allocator stays below


def opens_and_closes(trial: Trial) -> None:
    """Made, looked at and closed many times, it leaves no thread and no open file; a second close is nothing."""

    def cycle() -> None:
        with trial.env() as env:
            started(env, keys(env, 1)[0])
        env.close()

    cycle()
    files, threads = _num_files(), threading.active_count()
    for _ in range(trial.num_cycles):
        cycle()
    gc.collect()
    if _num_files() > files + 2:
        raise Broken(f"{_num_files() - files} more open files after {trial.num_cycles} were made and closed")
    if threading.active_count() > threads:
        raise Broken(f"{threading.active_count() - threads} more threads after {trial.num_cycles} were made and closed")


def memory_stays(trial: Trial) -> None:
    """Its memory does not grow with every reset."""
    if trial.num_resets < LEAST_RESETS:
        raise Skipped(f"{trial.num_resets} resets are too few to tell; it takes {LEAST_RESETS}")
    sizes = elsewhere(_sizes, trial)  # memory that this process has free would hide it
    settled = sizes[int(WARM_UP * len(sizes)) :]
    slope = float(np.polyfit(np.arange(len(settled)), settled, 1)[0]) if len(settled) > 1 else 0.0
    if slope > LEAK_BYTES:
        raise Broken(f"memory grows by {slope / 1024:.0f} KiB with every reset ({trial.num_resets} tried)")


def _sizes(trial: Trial) -> list[int]:
    """Of a process after each reset."""
    sizes = []
    with trial.env() as env:
        for number in range(trial.num_resets):
            started(env, EpisodeKey(env.spec.task, number, 0))
            gc.collect()  # what is only waiting for it is not lost
            sizes.append(_resident_bytes())
    return sizes


def _num_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
