"""Run under torchrun: what each process says to others in one optimizer step, counted.

argv: JSON. [[model, {axis: degree}, {train setting: value}], …] for engines alone, of which every process prints a JSON
line for each; or the path of a recipe, for the trainer, whose step is the difference between four steps and three.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from layouts import ACTION_DIM, MODELS

from vlarge import recipe as recipes
from vlarge.contracts import Sample, SampleId
from vlarge.data.pack import pack
from vlarge.train.config import ParallelConfig, TrainConfig
from vlarge.train.dry_run.rehearsal import Global, talk_beside
from vlarge.train.dry_run.traffic import Row, Traffic
from vlarge.train.engine import Engine
from vlarge.train.optim import learning_rate
from vlarge.train.parallel.mesh import Mesh, data_rank
from vlarge.train.parallel.world import World, joined_world
from vlarge.train.trainer import Trainer

CPU = torch.device("cpu")
NUM_SAMPLES = 8
WHOLE = Global(NUM_SAMPLES * 6 * ACTION_DIM, NUM_SAMPLES * 6)


def sizes_of(model: str) -> tuple[Any, Any]:
    """Of layouts.py, with as few layers as the mesh needs."""
    family, sizes = MODELS[model]
    return family, replace(sizes, depth=2, vision_depth=1)


def samples_of(degrees: ParallelConfig, rank: int) -> list[list[Sample]]:
    """The micro-batches of a rank. All ranks have samples of the same shapes and robots."""
    picture = np.zeros((16, 16, 3), np.uint8)
    num_data = degrees.num_data

    def one(i: int) -> Sample:
        images = dict.fromkeys(("a", "b"), picture)
        ids, state = np.arange(5), np.zeros(4, np.float32)
        return Sample(SampleId(0, 0, i), images, ids, state, np.zeros((6, ACTION_DIM), np.float32), i // num_data % 4)

    own = [one(i) for i in range(NUM_SAMPLES)][data_rank(degrees, rank) :: num_data]
    return [own[i :: degrees.num_micro] for i in range(degrees.num_micro)]


def config(settings: dict[str, Any]) -> TrainConfig:
    return TrainConfig(**{"dtype": "fp32", "warmup_steps": 0, "suffixes_per_prefix": 2, **settings})


def run(model: str, degrees: dict[str, Any], settings: dict[str, Any], world: World) -> Sequence[Row]:
    """Of the third step: DDP makes its final buckets after the first one."""
    family, sizes = sizes_of(model)
    parallel, c = ParallelConfig(**degrees).resolve(world.size), config(settings)
    mesh = Mesh(parallel, world, "cpu")
    torch.manual_seed(0)
    engine = Engine(family.build(sizes).train(), family.division(sizes), mesh, c, seed=3, device=CPU)
    batches = [pack(samples) for samples in samples_of(parallel, world.rank)]
    for step in range(3):
        with Traffic(parallel) as traffic:
            engine.add_gradients(batches, step, WHOLE.num_valid, WHOLE.num_tokens)
            engine.update(learning_rate(step, c), step)
            talk_beside(engine, mesh, batches)
    return traffic.rows()


def run_trainer(path: str, world: World) -> list[Row]:
    counted = []
    for steps in (3, 4):
        recipe = recipes.load([path], {"train.steps": steps, "run.dir": str(Path(path).with_suffix("") / str(steps))})
        trainer = Trainer(recipe, world)
        with Traffic(trainer.degrees) as traffic:
            trainer.train()
        counted.append({row[:2]: row for row in traffic.rows()})
    before, after = counted
    none = (0, 0)
    differences = [
        Row(*key, *(now - then for now, then in zip(row[2:], before[key][2:] if key in before else none, strict=True)))
        for key, row in after.items()
    ]
    return [row for row in differences if row.num_calls]


def main() -> None:
    torch.set_num_threads(1)
    with joined_world() as world:
        asked = json.loads(sys.argv[1])
        found = [run_trainer(asked, world)] if isinstance(asked, str) else [run(*each, world) for each in asked]
        for number, rows in enumerate(found):
            # in one write, because the others print at the same time
            sys.stdout.write(json.dumps({"number": number, "rank": world.rank, "rows": rows}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
