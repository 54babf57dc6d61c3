"""`vlarge train`: train a policy from a recipe; under torchrun it is distributed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlarge.cli.arguments import CommandLine, split
from vlarge.contracts import InputError

if TYPE_CHECKING:
    from vlarge.recipe import Recipe
    from vlarge.train.trainer import Trainer

HELP = "train a policy from a recipe; under torchrun it is distributed"

USAGE = """usage: vlarge train RECIPE [@OVERLAY.toml …] [--table.key VALUE …] [--resume]

Train on a LeRobot or RLDS dataset as the recipe says. The run directory receives steps.jsonl, tensorboard/ and
checkpoints/.

  RECIPE           a TOML file; recipes/finetune.toml is a good start
  @OVERLAY.toml    more files, each changes what the ones before it say
  --table.key V    one setting, for instance --data.path my_dataset --train.steps 2000 --run.dir runs/mine
  --resume         continue the run in --run.dir from its last checkpoint, bit for bit, or from its
                   beginning where it ended before the first one; --resume=auto begins where there is none
  --dry-run        train nothing: say what --world-size N processes would hold and send, or why they cannot start
  --json           print the outcome, of a dry run the report, for machines

LeRobot's --dataset.repo_id, --dataset.root, --policy.path, --batch_size, --steps, --output_dir and --seed work too.

Example: vlarge train recipes/finetune.toml --data.path my_dataset --run.dir runs/mine
On two processes: torchrun --nproc-per-node 2 -m vlarge train recipes/finetune.toml --data.path my_dataset
Before a thousand: vlarge train recipes/pi05_base.toml --dry-run --world-size 1024 --parallel.tp 8
With --max-restarts 10 torchrun starts all of them again when one has died; the run goes on from its last checkpoint.

Settings and their defaults:
"""


def run(argv: Sequence[str]) -> int:
    if not argv:
        raise InputError("no recipe: vlarge train RECIPE, for instance recipes/finetune.toml; --help says more")
    if "-h" in argv or "--help" in argv:
        print(USAGE + _settings())
        return 0
    from vlarge.data.index import require_dataset

    line = split(argv, {"resume": bool, "dry_run": bool, "world_size": int, "json": bool})
    recipe = line.recipe()
    if line.has("dry_run"):
        return _dry_run(recipe, line)
    if line.has("world_size"):
        raise InputError("--world-size belongs to --dry-run: add that, or leave it out")
    require_dataset(recipe.data)  # a mistake is told at once; the rest takes seconds to load
    return _train(recipe, line.flags.get("resume", "false"), as_json=line.has("json"))


def _settings() -> str:
    """Every table of a recipe with what its settings mean."""
    from vlarge.recipe import Recipe, dump

    defaults = Recipe()
    text = dump(defaults)
    for table in fields(defaults):
        lines = (getdoc(getattr(defaults, table.name)) or "").splitlines()
        meaning = "".join(f"# {line}".rstrip() + "\n" for line in lines)
        text = text.replace(f"[{table.name}]\n", f"[{table.name}]\n{meaning}")
    return text


def _dry_run(recipe: Recipe, line: CommandLine) -> int:
    world_size = _world_size(line)
    from vlarge.cli.show import print_json, print_table, progress
    from vlarge.train.dry_run import report
    from vlarge.train.dry_run.forecast import forecast

    with progress("dry run", recipe.parallel.pp) as tell:
        found = forecast(recipe, world_size, tell)
    if line.has("json"):
        print_json(report.as_json(found))
        return 0
    print("\n".join(report.headline(found)))
    for table in report.tables(found):
        print_table(*table)
    print(report.LEGEND)
    return 0


def _world_size(line: CommandLine) -> int:
    text = line.flags.get("world_size", "")
    if not text.isdecimal() or not int(text):
        given = f"--world-size is {text!r}" if text else "--dry-run does not say of how many processes"
        raise InputError(f"{given}: give their number, as --world-size 1024")
    return int(text)


def _train(recipe: Recipe, resume: str, *, as_json: bool) -> int:
    from torch.distributed import is_torchelastic_launched

    from vlarge.train.checkpoint.shelf import CHECKPOINTS, Shelf
    from vlarge.train.engines import require_engine
    from vlarge.train.health import restart, timeouts
    from vlarge.train.health.lost import told_how_to_go_on
    from vlarge.train.parallel.world import joined_world
    from vlarge.train.trainer import Trainer

    require_engine(recipe)  # before processes wait for each other
    run_dir = Path(recipe.run.dir)
    if is_torchelastic_launched():
        timeouts.record_flights(run_dir)
    newest = Shelf(run_dir / CHECKPOINTS, 0).newest
    with told_how_to_go_on(newest), joined_world(recipe.health.start_timeout_s) as world:
        trainer = Trainer(recipe, world, resume=restart.decide_resume(resume, run_dir, world))
        restart.mark(run_dir, world)
        if world.is_main:
            print(_describe(trainer), file=sys.stderr)
        was_finished = trainer.finished
        try:
            checkpoint = trainer.train()
        except KeyboardInterrupt:
            print(f"left at once; the last checkpoint is {trainer.checkpoints.last() or 'none'}", file=sys.stderr)
            raise
        if world.is_main:
            outcome = f"{_outcome(trainer, was_finished=was_finished)}: {checkpoint}"
            print(json.dumps(_as_json(trainer, checkpoint)) if as_json else outcome)
    return 0


def _as_json(trainer: Trainer, checkpoint: Path) -> dict[str, Any]:
    return {
        "checkpoint": str(checkpoint),
        "step": trainer.step,
        "steps": trainer.recipe.train.steps,
        "finished": trainer.finished,
        "num_skipped": trainer.skipped.total,
    }


def _outcome(trainer: Trainer, *, was_finished: bool) -> str:
    if was_finished:
        return f"nothing to do at step {trainer.step}, train.steps is {trainer.recipe.train.steps}; raise it to go on"
    done = "finished" if trainer.finished else f"stopped at step {trainer.step}; continue with --resume"
    skipped = trainer.skipped.total
    return done + (
        f", {skipped} of {trainer.step} steps skipped, since their gradients were not finite" if skipped else ""
    )


def _describe(trainer: Trainer) -> str:
    from vlarge.data.check import describe_left_out

    c = trainer.recipe
    lines = [f"{c.model.name} {c.model.init or c.model.preset}: {c.train.dtype} on {trainer.device}"]
    lines += ["  " + line for line in trainer.audit.lines()]
    for dataset, preparation in zip(trainer.datasets, trainer.plan.preparations, strict=True):
        lines.append(
            f"{dataset.root}: {len(dataset.episodes)} episodes, {dataset.num_frames} frames,"
            f" cameras {', '.join(preparation.cameras) or 'none'}"
        )
        lines += describe_left_out(dataset.faults)
        if num_reports := sum(fault.action == "report" for fault in dataset.faults):
            harmless = "1 oddity does" if num_reports == 1 else f"{num_reports} oddities do"
            lines.append(f"{harmless} no harm; `vlarge data check` names {'it' if num_reports == 1 else 'them'}")
    return "\n".join(lines)
