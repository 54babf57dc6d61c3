"""Whole training steps of π0.5 and GR00T N1.5 at full size on one GPU: gradients, clipping, AdamW, averages.

    PYTHONPATH=src python benchmarks/gpu_train.py --budget-s 420

Needs torch, numpy and safetensors. Configurations come in order of importance, each result is written at once
(`gpu_train.json` in --out), and none is begun when the budget is nearly over. `--device cpu --size tiny` tries the
script itself in a minute or two, without meaning.

bf16 products over fp32 weights; the batch is that of `gpu_models.py`. Utilisation counts the operations that real
tokens need, three times those of a forward pass, whatever is run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_models import (
    ACTION_DIM,
    LEAST_S,
    PEAK_FLOPS,
    PRESENT,
    PRESETS,
    STATE_DIM,
    TEXT,
    batch_of,
    machine,
    note,
    timed,
)

from vlarge.models.config import ModelConfig
from vlarge.models.registry import find_family
from vlarge.train.config import ParallelConfig, TrainConfig
from vlarge.train.engine import Engine
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.world import World

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Configuration:
    model: str
    batch: int
    recompute: str
    compiled: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}, batch {self.batch}, recompute {self.recompute}" + ", compiled" * self.compiled


def configurations(batch: int) -> Iterator[Configuration]:
    """Most important first."""
    yield Configuration("pi05", batch, "selective")
    yield Configuration("pi05", batch, "selective", compiled=True)
    yield Configuration("pi05", batch, "layers")
    yield Configuration("pi05", batch, "none")
    yield Configuration("gr00t", batch, "selective")
    yield Configuration("gr00t", batch, "selective", compiled=True)
    yield Configuration("pi05", batch, "none", compiled=True)
    yield Configuration("pi05", batch, "layers", compiled=True)
    yield Configuration("pi05", 2 * batch, "selective", compiled=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=420)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of gpu_train.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=list(PRESETS), default="full")
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    ends, device = time.monotonic() + arguments.budget_s, torch.device(arguments.device)
    found: dict[str, Any] = {"machine": machine(device), "size": arguments.size, "steps": {}}
    for each in configurations(arguments.batch):
        if ends - time.monotonic() < (LEAST_S if device.type == "cuda" else 1):
            found["steps"][each.name] = {"skipped": "the budget is over"}
            continue
        run = partial(measured, each, arguments.size, device, ends)
        note(found, "steps", each.name, run, arguments.out / "gpu_train.json")


def measured(c: Configuration, size: str, device: torch.device, ends: float) -> dict[str, Any]:
    """Samples per second, utilisation and peak memory of whole steps."""
    torch.manual_seed(0)
    family = find_family(c.model)
    config = ModelConfig(name=c.model, preset=PRESETS[size][c.model])
    sizes = family.resolve(config, vocab_size=0, state_dim=STATE_DIM, action_dim=ACTION_DIM)
    with device:
        network = family.build(sizes).train()
    train = TrainConfig(dtype="bf16", recompute=c.recompute, compile=c.compiled)
    mesh = Mesh(ParallelConfig().resolve(1), World(), device.type)
    engine = Engine(network, family.division(sizes), mesh, train, seed=0, device=device)
    batch = batch_of(sizes, c.batch, PRESENT, TEXT)
    steps = iter(range(1_000_000))

    def step() -> None:
        number = next(steps)
        num_tokens = float(batch.num_actions_B.sum())
        engine.add_gradients([batch], number, batch.num_valid_values, num_tokens)
        engine.update(1e-5, number)

    seconds = timed(step, device, ends)
    flops = 3 * family.forward_flops(sizes, batch, 1)
    peak = next((value for name, value in PEAK_FLOPS.items() if name in machine(device)["card"]), float("nan"))
    return {
        "samples_per_s": c.batch / seconds,
        "step_s": seconds,
        "utilisation": flops / seconds / peak,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
    }


if __name__ == "__main__":
    main()
