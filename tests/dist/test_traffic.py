"""A dry run's collectives are those of real processes, count for count and byte for byte, on every axis of the mesh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import traffic

from vlarge import recipe as recipes
from vlarge.data.pack import pack
from vlarge.train.config import ParallelConfig
from vlarge.train.dry_run.forecast import forecast
from vlarge.train.dry_run.rehearsal import rehearse
from vlarge.train.dry_run.traffic import Row

SCRIPT = Path(traffic.__file__)
TWO: list[Any] = [
    ("pi05", {"dp_shard": 2}, {}),
    ("pi05", {"tp": 2}, {}),
    ("pi05", {"pp": 2}, {"dtype": "bf16"}),
    ("pi05", {"cp": 2}, {}),
    ("gr00t", {"ep": 2}, {}),
    ("gr00t", {}, {}),
]
EIGHT: list[Any] = [
    ("pi05", {"pp": 2, "tp": 2, "dp_shard": 2}, {}),
    ("gr00t", {"pp": 2, "tp": 2, "dp_shard": 2}, {"recompute": "layers"}),
    ("pi05", {"dp_replicate": 2, "dp_shard": 2, "tp": 2}, {"dtype": "bf16"}),
    ("gr00t", {"pp": 2, "ep": 2, "cp": 2}, {}),
    ("moe", {"ep": 2, "dp_shard": 2}, {}),
]

RECIPE = """
[data]
path = "{data}"
clip_frames = 4
window_samples = 12
workers = 0
[model]
image_size = 32
action_horizon = 1
[train]
batch_size = 8
dtype = "bf16"
device = "cpu"
num_threads = 1
warmup_steps = 0
[parallel]
pp = 2
tp = 2
dp_shard = 2
[track]
tensorboard = false
"""


@pytest.mark.long
def test_two_processes_by_every_axis() -> None:
    check(2, TWO)


@pytest.mark.long
def test_eight_processes() -> None:
    check(8, EIGHT)


@pytest.mark.long
def test_the_trainer_on_eight_processes(tmp_path: Path, make_datasets: ModuleType) -> None:
    """Shares of the batch and the sums of a step too, and the plan that the dry run makes of a recipe itself."""
    recipe, data = tmp_path / "recipe.toml", tmp_path / "set"
    spec = make_datasets.Spec("v3.0", episodes=4, length="10:20", codec="h264", tasks=1)
    make_datasets.make(data, spec)
    recipe.write_text(RECIPE.format(data=data))
    real = started(8, str(recipe))
    for rank in forecast(recipes.load([recipe]), 8).ranks:
        assert rank.traffic == real[0, rank.rank]


def check(num_processes: int, layouts: list[Any]) -> None:
    real = started(num_processes, layouts)
    for number, (model, degrees, settings) in enumerate(layouts):
        for rank in range(0, num_processes, num_processes // degrees.get("pp", 1)):
            imagined = imagine(model, ParallelConfig(**degrees).resolve(num_processes), settings, rank)
            assert compared(model, imagined) == compared(model, real[number, rank]), (model, degrees, rank)


def compared(model: str, rows: tuple[Row, ...]) -> list[Any]:
    # A router sends as many rows to each expert as it likes.
    return [row[:3] if model == "moe" and row.kind == "all-to-all" else row for row in rows]


def imagine(model: str, degrees: ParallelConfig, settings: dict[str, Any], rank: int) -> tuple[Row, ...]:
    family, sizes = traffic.sizes_of(model)
    with torch.device("meta"):
        network = family.build(sizes).train()
    batches = [pack(samples) for samples in traffic.samples_of(degrees, rank)]
    c = traffic.config(settings)
    return rehearse(network, family.division(sizes), degrees, c, rank, batches, traffic.WHOLE).traffic


def started(num_processes: int, asked: Any) -> dict[tuple[int, int], tuple[Row, ...]]:
    """The rows of real processes, by number of what was asked and rank."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes),
        str(SCRIPT), json.dumps(asked),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {
        (line["number"], line["rank"]): tuple(Row(tuple(axes), *rest) for axes, *rest in line["rows"])
        for line in lines
    }
