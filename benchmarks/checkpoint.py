"""How long a checkpoint stops the training: beside a save that waits for the disk, and beside one copy of the state.

    python benchmarks/checkpoint.py --gib 1

Takes about two minutes; keep the machine quiet. Writes to --folder (a new one beside the results, removed afterwards)
and its result as JSON and Markdown to --out (beside this file).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from vlarge.train.checkpoint import Checkpoints

HERE = Path(__file__).parent
ROUNDS = 8
GIB = 2**30
TENSOR_BYTES = 16 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=HERE)
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        found = {
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU",
            "threads": torch.get_num_threads(),
            "commit": commit.strip(),
            "gib": arguments.gib,
            **measure(folder, arguments.gib),
        }
    finally:
        shutil.rmtree(folder)
    (arguments.out / "checkpoint.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "checkpoint.md").write_text(as_markdown(found))
    print((arguments.out / "checkpoint.md").read_text())


def measure(folder: Path, gib: float) -> dict[str, Any]:
    """Each kind once in every round, in turns, so that what else the machine does falls on all."""
    state = state_of(gib)
    checkpoints = Checkpoints(folder / "ours", keep_last=1)
    kept = {name: torch.empty_like(value) for name, value in state.items()}
    first_s = seconds(lambda: begin(checkpoints, 0, state))
    checkpoints.finish()
    rounds = [one_round(folder, checkpoints, step, state, kept) for step in range(1, ROUNDS + 1)]
    return {"first_begin_s": first_s, "rounds": rounds}


def one_round(
    folder: Path, checkpoints: Checkpoints, step: int, state: dict[str, Tensor], kept: dict[str, Tensor]
) -> dict[str, float]:
    os.sync()  # what came before is no part of it
    begin_s = seconds(lambda: begin(checkpoints, step, state))
    rest_s = seconds(lambda: checkpoints.finish())
    other = folder / "torch"
    torch_s = seconds(lambda: save_by_torch(other, state))
    shutil.rmtree(other)
    return {
        "begin_s": begin_s,
        "waiting_s": begin_s + rest_s,
        "torch_s": torch_s,
        "copy_s": seconds(lambda: copy(state, kept)),
        "clone_s": seconds(lambda: {name: value.clone() for name, value in state.items()}),
    }


def begin(checkpoints: Checkpoints, step: int, state: dict[str, Tensor]) -> None:
    checkpoints.begin(step, {"model": state, "position": {"step": step}}, lambda *_: None)
    checkpoints.fence()


def save_by_torch(folder: Path, state: dict[str, Tensor]) -> None:
    with warnings.catch_warnings(action="ignore"):  # no process group is meant
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)


def copy(state: dict[str, Tensor], kept: dict[str, Tensor]) -> None:
    for name, value in state.items():
        kept[name].copy_(value)


def state_of(gib: float) -> dict[str, Tensor]:
    num = max(1, round(gib * GIB / TENSOR_BYTES))
    return {f"layers.{index}.weight": torch.randn(TENSOR_BYTES // 4) for index in range(num)}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def as_markdown(found: dict[str, Any]) -> str:
    rounds = found["rounds"]
    best = {name: min(each[name] for each in rounds) for name in rounds[0]}

    def share(name: str) -> str:
        ratios = sorted(each["begin_s"] / each[name] for each in rounds)
        return f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"

    names = {
        "begin_s": "begin, of a save beside training",
        "copy_s": "a copy into memory at hand",
        "clone_s": "a copy into new memory",
        "waiting_s": "begin and finish",
        "torch_s": "torch.distributed.checkpoint.save, synced",
    }
    rows = [f"| {text} | {best[name]:.3f} | {share(name)} |" for name, text in names.items()]
    command = f"`python benchmarks/checkpoint.py --gib {found['gib']:g}`"
    return "\n".join(
        [
            "# How long a checkpoint stops the training",
            "",
            f"{command}, {found['hardware']}, {found['threads']} threads. One process, {found['gib']:g} GiB of fp32 in"
            f" tensors of 16 MiB, {len(rounds)} rounds in which each kind had its turn. At commit {found['commit']}.",
            "",
            "|  | best s | begin is, of it (median; least to most over rounds) |",
            "| --- | --- | --- |",
            *rows,
            "",
            f"The first begin, which also plans and takes the memory: {found['first_begin_s']:.3f} s.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
